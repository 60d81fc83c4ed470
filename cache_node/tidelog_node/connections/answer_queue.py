"""The answers that wait for those before them, in the order of the requests.

An answer that is ready waits for those that are owed. A control request waits for its turn, too:
it is carried out when its answer would be the next, and one a time.
"""

from __future__ import annotations

from collections import deque

from tidelog_node.answers import ControlReply, OwedReply, Reply, bytes_in_memory


class AnswerQueue:
    """The waiting answers of one connection."""

    __slots__ = ("blocked_bytes", "control", "control_bytes", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Reply | OwedReply] = deque()
        self.blocked_bytes = 0  # of answers that are ready behind one that is not, files apart
        self.control: deque[ControlReply] = deque()  # those in ``waiting`` that are not begun
        self.control_bytes = 0  # of those requests and of the one under way

    def add_blocked(self, answer: Reply) -> None:
        """Add an answer behind those that are owed."""
        self.waiting.append(answer)
        self.blocked_bytes += bytes_in_memory(answer)

    def add_control(self, answer: ControlReply, request_bytes: int) -> None:
        """Have the request of the last answer carried out when it is its turn."""
        answer.request_bytes = request_bytes
        self.control.append(answer)
        self.control_bytes += request_bytes

    @property
    def is_control_next(self) -> bool:
        """Whether a control request waits, and for no answer before its own."""
        return bool(self.control) and self.waiting[0] is self.control[0]

    def drop_control(self) -> int:
        """Carry out none of the control requests that are left; return the bytes of all."""
        dropped_bytes, self.control_bytes = self.control_bytes, 0
        self.control.clear()
        return dropped_bytes

    def pop_ready(self) -> Reply | None:
        """Take the first answer if it is ready."""
        if not self.waiting:
            return None
        entry = self.waiting[0]
        reply = entry.reply if isinstance(entry, OwedReply) else entry
        if reply is not None:
            self.waiting.popleft()
        return reply

    @property
    def problem(self) -> Exception | None:
        """Why there is no first answer and never will be."""
        entry = self.waiting[0] if self.waiting else None
        return entry.problem if isinstance(entry, OwedReply) else None

    def ready_bytes(self) -> int:
        """Return the bytes of answers that are ready behind one that is not, files apart."""
        size_bytes = 0
        for entry in self.waiting:
            reply = entry.reply if isinstance(entry, OwedReply) else entry
            if reply is not None:
                size_bytes += bytes_in_memory(reply)
        return size_bytes

    def give_up(self) -> None:
        """Drop the waiting answers: the connection is closed."""
        for entry in self.waiting:
            if isinstance(entry, OwedReply):
                entry.give_up()
        self.waiting.clear()
        self.blocked_bytes = 0
