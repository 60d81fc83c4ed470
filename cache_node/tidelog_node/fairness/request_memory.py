"""Bounds the memory of unanswered requests of all connections of a node.

``queued.max.request.bytes`` is divided into shares, so that one kind of request cannot block
another: unfinished small requests, unfinished Produce requests of usual size, unfinished large
ones, control requests until they are answered, and answers until the client has received them.
An unfinished frame counts, and so does a buffer that a connection keeps for its next frame. Bytes
of paused connections count only in the whole budget, in no share.

A connection claims a whole frame as soon as the frame's size is known, and receives no more of it
before the claim is granted. So every granted frame can finish, and half-received frames never wait
for each other. Claims are granted to hosts in rotation, and among a host's connections in order,
one claim each: a client with many connections waits for itself. A claim that is larger than its
share is granted when it has the share for itself. Bytes that came with the frame's size, at most
one receive buffer, are in memory already, and count without a claim.

When the whole budget is used, connections receive little at a time (``is_short``), and a control
request that is larger than that waits for memory of control requests before it is received. A
smaller one counts and is never refused: heartbeats continue, one a connection.

While claims wait, a connection that holds memory must make progress. If its frame or answer would
not finish in time at its current rate, the connection is closed. The more claims wait, the sooner
that is checked: clients that claim memory and then send nothing must be closed before those behind
them time out. A check that runs late closes no connection: the node itself did not receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

SMALL_FRAME_BYTES_MAX = 131_072
USUAL_FRAME_BYTES_MAX = 4_194_304
SHORT_FRAME_BYTES_MAX = 4_096  # of a small control request while memory is short
RECORDS_API_KEY = 0  # Produce: the only API whose requests carry records
FETCH_API_KEY = 1
READ_ON_THE_SPOT = frozenset({RECORDS_API_KEY, FETCH_API_KEY})  # handled when received
# In eighths of the budget.
SMALL_SHARE, USUAL_SHARE, LARGE_SHARE, CONTROL_SHARE = 1, 2, 4, 1
# Progress checks of a frame in its time: while few claims wait, and while many do.
CHECKS_PER_FRAME_MIN, CHECKS_PER_FRAME_MAX = 6, 30
FEW_WAITING = 8
LATE_INTERVALS = 2.0  # A check is late after this multiple of its interval.


class Claimant(Protocol):
    """A connection, as ``RequestMemory`` uses it."""

    @property
    def client_host(self) -> str:
        """The client's address."""

    @property
    def arrived_bytes(self) -> int:
        """The received bytes of the unfinished frame."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that the client has not received."""

    @property
    def is_held_up(self) -> bool:
        """Whether the node itself has stopped reading from the client."""

    def on_memory(self) -> None:
        """Repeat the last claim: it is granted now."""

    def release_idle_buffer(self) -> None:
        """Release an empty buffer."""

    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Close the connection."""


class _Line:
    """The queue of waiting claims. Hosts take turns; within a host the oldest claim is first."""

    def __init__(self) -> None:
        self._of_host: dict[str, dict[Claimant, int]] = {}
        self.count = 0

    def add(self, claimant: Claimant, size_bytes: int) -> None:
        """Queue the claim after those of its host; a new host goes after the other hosts."""
        self._of_host.setdefault(claimant.client_host, {})[claimant] = size_bytes
        self.count += 1

    def first(self) -> tuple[Claimant, int]:
        """Return the claimant whose turn it is, and the bytes that it claims."""
        return next(iter(next(iter(self._of_host.values())).items()))

    def remove(self, claimant: Claimant) -> None:
        """Remove the claim if it is queued; its host's next turn comes after the other hosts'."""
        host = claimant.client_host
        of_host = self._of_host.get(host, {})
        if of_host.pop(claimant, None) is None:
            return
        self.count -= 1
        del self._of_host[host]
        if of_host:
            self._of_host[host] = of_host


@dataclass(slots=True, eq=False)
class _Share:
    """A part of the budget, and its claimants."""

    bytes_max: int
    held_bytes: int = 0
    under_way: dict[Claimant, None] = field(default_factory=dict)  # granted, not complete
    waiting: _Line = field(default_factory=_Line)
    held: dict[Claimant, None] = field(default_factory=dict)  # bytes of paused connections
    idle: dict[Claimant, None] = field(default_factory=dict)  # with a buffer for the next frame


@dataclass(slots=True)
class _Claim:
    share: _Share
    held_bytes: int
    is_promised: bool = False  # granted, and not claimed again yet
    seen_bytes: int = -1  # received at the last progress check; -1: not checked yet


@dataclass(slots=True)
class _Answer:
    held_bytes: int
    seen_bytes: int = -1  # unsent at the last progress check; -1: not checked yet


class RequestMemory:
    """The memory that connections hold, and the queues of their claims. For one event loop."""

    def __init__(
        self,
        bytes_max: int,
        *,
        frame_seconds_max: float,
        loop: asyncio.AbstractEventLoop,
        on_short: Callable[[bool], None],
    ) -> None:
        """``on_short`` is called with true when the budget is exceeded, with false afterwards."""
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.is_short = False
        self._on_short = on_short
        self._loop = loop
        self._frame_seconds_max = frame_seconds_max
        eighth = max(bytes_max // 8, 1)
        self._small = _Share(SMALL_SHARE * eighth)
        self._usual = _Share(USUAL_SHARE * eighth)
        self._large = _Share(LARGE_SHARE * eighth)
        self._control = _Share(CONTROL_SHARE * eighth)
        self._paused = _Share(0)  # No claim uses it, so none waits for it.
        self._unanswered_bytes = 0  # of control requests and unsent answers
        self._claims: dict[Claimant, _Claim] = {}
        self._answers: dict[Claimant, _Answer] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_grant_due = False

    @property
    def waiting_count(self) -> int:
        """The number of connections that wait for memory."""
        return sum(share.waiting.count for share in self._shares())

    def claim(
        self, claimant: Claimant, size_bytes: int, *, arrived_bytes: int, api_key: int
    ) -> bool:
        """Return whether the claimant may receive a frame of this size; replaces its last claim.

        Otherwise ``on_memory`` is called later, once, and until then ``arrived_bytes`` count.
        """
        promised = self._claims.get(claimant)
        if promised is not None and promised.is_promised and promised.held_bytes == size_bytes:
            promised.is_promised = False
            return True
        self._drop(claimant)
        share = self._share_for(size_bytes, api_key)
        if not share.waiting.count:
            if share.held_bytes + size_bytes > share.bytes_max:
                self._take_idle_buffers(share)
            if self._has_room(share, size_bytes):
                self._grant(claimant, share, size_bytes)
                return True
        self._add(claimant, share, arrived_bytes)
        share.waiting.add(claimant, size_bytes)
        if self._check_timer is None:
            self._check_later()
        return False

    def hold(self, claimant: Claimant, size_bytes: int) -> None:
        """Count bytes that a paused connection has received; replaces its last claim."""
        self._drop(claimant)
        self._add(claimant, self._paused, size_bytes)
        self._paused.held[claimant] = None

    def keep_idle(self, claimant: Claimant, size_bytes: int) -> bool:
        """Return whether the claimant may keep an empty buffer of this size for its next frame."""
        self._drop(claimant)
        share = self._share_for(size_bytes, RECORDS_API_KEY)
        if share.waiting.count or share.held_bytes + size_bytes > share.bytes_max:
            return False
        self._add(claimant, share, size_bytes)
        share.idle[claimant] = None
        return True

    def release(self, claimant: Claimant) -> None:
        """Release the claimant's memory and remove its waiting claim."""
        self._drop(claimant)

    def add_control(self, size_bytes: int) -> None:
        """Count a control request until ``give_back_control``."""
        self._count_unanswered(size_bytes)

    def give_back_control(self, size_bytes: int) -> None:
        """Release the memory that ``add_control`` counted."""
        self._count_unanswered(-size_bytes)

    def hold_answer(self, claimant: Claimant, size_bytes: int) -> None:
        """Count the answers that the client has not received; replaces the last count."""
        answer = self._answers.get(claimant)
        if answer is None:
            answer = self._answers[claimant] = _Answer(0)
        added_bytes = size_bytes - answer.held_bytes
        answer.held_bytes = size_bytes
        if answer.seen_bytes >= 0:
            answer.seen_bytes += max(added_bytes, 0)  # which could not be received before
        self._count_unanswered(added_bytes)
        if self._is_wanted() and self._check_timer is None:
            self._check_later()

    def release_answer(self, claimant: Claimant) -> None:
        """Release the memory that ``hold_answer`` counted."""
        answer = self._answers.pop(claimant, None)
        if answer is not None:
            self._count_unanswered(-answer.held_bytes)

    # -- inside --

    def _is_wanted(self) -> bool:
        """Return whether memory is short or claims wait."""
        return self.is_short or self.waiting_count > 0

    def _shares(self) -> tuple[_Share, ...]:
        return self._small, self._usual, self._large, self._control

    def _share_for(self, size_bytes: int, api_key: int) -> _Share:
        """Return the share for a frame.

        While memory is short, only a control request up to ``SHORT_FRAME_BYTES_MAX`` is small:
        larger ones must not accumulate while each waits for its turn.
        """
        is_waiting_kind = self.is_short and api_key not in READ_ON_THE_SPOT
        small_bytes_max = SHORT_FRAME_BYTES_MAX if is_waiting_kind else SMALL_FRAME_BYTES_MAX
        if size_bytes <= small_bytes_max:
            return self._small
        if api_key != RECORDS_API_KEY:
            return self._control
        return self._usual if size_bytes <= USUAL_FRAME_BYTES_MAX else self._large

    def _has_room(self, share: _Share, size_bytes: int) -> bool:
        """Return whether a claim can be granted now.

        A control request counts until it is answered. So a claim that exceeds its share needs room
        in the whole budget, unless there is nothing to wait for.
        """
        if share.held_bytes + size_bytes <= share.bytes_max:
            return True
        if share.under_way:
            return False
        if share is not self._control or not self._unanswered_bytes:
            return True
        return self.held_bytes + size_bytes <= self.bytes_max

    def _grant(self, claimant: Claimant, share: _Share, size_bytes: int) -> None:
        self._add(claimant, share, size_bytes)
        share.under_way[claimant] = None

    def _add(self, claimant: Claimant, share: _Share, size_bytes: int) -> None:
        self._claims[claimant] = _Claim(share, size_bytes)
        share.held_bytes += size_bytes
        self._count(size_bytes)

    def _drop(self, claimant: Claimant) -> None:
        claim = self._claims.pop(claimant, None)
        if claim is None:
            return
        share = claim.share
        share.held_bytes -= claim.held_bytes
        share.under_way.pop(claimant, None)
        share.waiting.remove(claimant)
        share.held.pop(claimant, None)
        share.idle.pop(claimant, None)
        self._count(-claim.held_bytes)
        if share.waiting.count or self._control.waiting.count:
            self._grant_soon()

    def _count_unanswered(self, size_bytes: int) -> None:
        self._unanswered_bytes += size_bytes
        self._control.held_bytes += size_bytes
        self._count(size_bytes)
        if size_bytes < 0 and self._control.waiting.count:
            self._grant_soon()

    def _count(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        is_short = self.held_bytes > self.bytes_max
        if is_short != self.is_short:
            self.is_short = is_short
            self._on_short(is_short)

    def _take_idle_buffers(self, share: _Share) -> None:
        for claimant in tuple(share.idle):
            claimant.release_idle_buffer()

    def _grant_soon(self) -> None:
        # Deferred: the claimant that releases memory is in the middle of an operation.
        if not self._is_grant_due:
            self._is_grant_due = True
            self._loop.call_soon(self._grant_waiting)

    def _grant_waiting(self) -> None:
        self._is_grant_due = False
        for share in self._shares():
            while share.waiting.count:
                claimant, size_bytes = share.waiting.first()
                arrived_bytes = self._claims[claimant].held_bytes
                if not self._has_room(share, size_bytes - arrived_bytes):
                    break
                self._drop(claimant)
                self._grant(claimant, share, size_bytes)
                self._claims[claimant].is_promised = True
                claimant.on_memory()

    def _check_later(self) -> None:
        checks_per_frame = CHECKS_PER_FRAME_MIN * self.waiting_count / FEW_WAITING
        checks_per_frame = max(checks_per_frame, CHECKS_PER_FRAME_MIN)
        seconds = self._frame_seconds_max / min(checks_per_frame, CHECKS_PER_FRAME_MAX)
        self._check_timer = self._loop.call_later(
            seconds, self._check_progress, self._loop.time(), seconds
        )

    def _check_progress(self, began: float, due_seconds: float) -> None:
        """Close connections without progress that hold memory which others wait for."""
        self._check_timer = None
        seconds = self._loop.time() - began
        if seconds > LATE_INTERVALS * due_seconds:
            self._restart_checks()
        for share in self._shares():
            if not share.waiting.count:
                continue
            for claimant in tuple(share.under_way):
                claim = self._claims.get(claimant)
                if claim is not None:
                    self._check_claim(claimant, claim, seconds)
        if self._is_wanted():
            for claimant in tuple(self._paused.held):
                claim = self._claims.get(claimant)
                # If more is unsent than before, it received enough for its requests to continue.
                if claim is not None and not claimant.is_held_up:
                    if 0 <= claim.seen_bytes < claimant.unsent_bytes:
                        claim.seen_bytes = -1
                    self._check_answer(claimant, claim, seconds)
            for claimant, answer in tuple(self._answers.items()):
                self._check_answer(claimant, answer, seconds)
            self._check_later()

    def _restart_checks(self) -> None:
        """Restart the progress checks of all connections."""
        for claim in self._claims.values():
            claim.seen_bytes = -1
        for answer in self._answers.values():
            answer.seen_bytes = -1

    def _check_answer(self, claimant: Claimant, answer: _Answer | _Claim, seconds: float) -> None:
        unsent_bytes = claimant.unsent_bytes
        taken_bytes = answer.seen_bytes - unsent_bytes
        is_first_check = answer.seen_bytes < 0
        answer.seen_bytes = unsent_bytes
        if is_first_check or not unsent_bytes:
            return
        if taken_bytes * self._frame_seconds_max < answer.held_bytes * seconds:
            claimant.close(
                f"{unsent_bytes} bytes of answers have not been taken, {taken_bytes} were in the "
                f"last {seconds:.1f} s, while others wait for memory: see "
                "queued.max.request.bytes",
                is_expected=False,
            )

    def _check_claim(self, claimant: Claimant, claim: _Claim, seconds: float) -> None:
        arrived_bytes = claimant.arrived_bytes
        came_bytes = arrived_bytes - claim.seen_bytes
        is_first_check = claim.seen_bytes < 0
        claim.seen_bytes = arrived_bytes
        if is_first_check or claimant.is_held_up:
            return
        if came_bytes * self._frame_seconds_max < claim.held_bytes * seconds:
            claimant.close(
                f"{arrived_bytes} of {claim.held_bytes} bytes of a request have come, "
                f"{came_bytes} of them in the last {seconds:.1f} s, while others wait "
                "for memory: see queued.max.request.bytes",
                is_expected=False,
            )
