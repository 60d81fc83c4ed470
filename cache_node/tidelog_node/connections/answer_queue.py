"""The answers of one connection that wait for earlier ones, in the order of the requests.

A ready answer waits for the pending ones before it. A control request waits for its turn, too: it
runs when its answer would be the next. Answers that the client has not taken count against the
memory of requests, without the bytes of file slices.
"""

from __future__ import annotations

from collections import deque

from tidelog_node.answers import ControlReply, PendingReply, Reply, Segment, bytes_in_memory
from tidelog_node.fairness.request_memory import Claimant, RequestMemory

COUNTED_ANSWER_BYTES_MIN = 65_536  # fewer bytes of a connection's answers are not counted


class AnswerQueue:
    """The waiting answers of one connection."""

    __slots__ = (
        "_counted_bytes",
        "_memory",
        "blocked_bytes",
        "control",
        "control_bytes",
        "sending_bytes",
        "waiting",
    )

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.waiting: deque[Reply | PendingReply] = deque()
        # Of answers that the client has not taken, without file slices.
        self.sending_bytes = 0  # of answers whose turn has come, until all of them are sent
        self.blocked_bytes = 0  # of ready answers behind one that is not ready
        self._counted_bytes = 0  # of both, as reported to the memory of requests
        self.control: deque[ControlReply] = deque()  # those in ``waiting`` that have not begun
        self.control_bytes = 0  # of those requests and of the running one

    def add_blocked(self, answer: Reply) -> None:
        """Add an answer behind the pending ones."""
        self.waiting.append(answer)
        self.blocked_bytes += bytes_in_memory(answer)

    def add_control(self, answer: ControlReply, request_bytes: int) -> None:
        """Queue the request of the last answer, to run when it is its turn."""
        answer.request_bytes = request_bytes
        self.control.append(answer)
        self.control_bytes += request_bytes

    @property
    def is_control_next(self) -> bool:
        """Whether a control request waits, and no answer before its own."""
        return bool(self.control) and self.waiting[0] is self.control[0]

    def drop_control(self) -> int:
        """Drop the control requests that have not begun; return the bytes of all, begun or not."""
        dropped_bytes, self.control_bytes = self.control_bytes, 0
        self.control.clear()
        return dropped_bytes

    def move_ready(self, unsent: deque[Segment]) -> None:
        """Move the answers whose turn has come to those that are sent."""
        waiting = self.waiting
        while waiting:
            entry = waiting[0]
            reply = entry.reply if isinstance(entry, PendingReply) else entry
            if reply is None:
                break
            waiting.popleft()
            unsent.extend(reply)
            self.sending_bytes += bytes_in_memory(reply)
        if waiting or self.blocked_bytes:
            self.blocked_bytes = self.ready_bytes()

    @property
    def problem(self) -> Exception | None:
        """The reason for which the first answer will never be ready."""
        entry = self.waiting[0] if self.waiting else None
        return entry.problem if isinstance(entry, PendingReply) else None

    def ready_bytes(self) -> int:
        """Return the bytes of ready answers behind one that is not ready, without file slices."""
        size_bytes = 0
        for entry in self.waiting:
            reply = entry.reply if isinstance(entry, PendingReply) else entry
            if reply is not None:
                size_bytes += bytes_in_memory(reply)
        return size_bytes

    def count(self, claimant: Claimant) -> None:
        """Report the answers to the memory of requests; small differences are left out."""
        answer_bytes = self.sending_bytes + self.blocked_bytes
        if answer_bytes < COUNTED_ANSWER_BYTES_MIN:
            answer_bytes = 0
        uncounted_bytes = answer_bytes - self._counted_bytes
        if not answer_bytes and uncounted_bytes:
            self._memory.release_answer(claimant)
        elif abs(uncounted_bytes) >= COUNTED_ANSWER_BYTES_MIN:
            self._memory.hold_answer(claimant, answer_bytes)
        else:
            return
        self._counted_bytes = answer_bytes

    def give_up(self, claimant: Claimant) -> None:
        """Drop the waiting answers: the connection is closed."""
        for entry in self.waiting:
            if isinstance(entry, PendingReply):
                entry.give_up()
        self.waiting.clear()
        self.sending_bytes = self.blocked_bytes = 0
        self.count(claimant)
