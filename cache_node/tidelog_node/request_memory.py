"""Bounds the memory of unanswered requests of all connections of a node.

``queued.max.request.bytes`` is divided into shares, so that one kind of request cannot block
another: unfinished small requests, unfinished Produce requests of usual size, unfinished large
ones, control requests until they are answered, and answers until the client has received them.
An unfinished frame counts, and so does a buffer that a connection keeps for its next frame. Bytes
of paused connections count in no share, only in the whole.

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
SHORT_FRAME_BYTES_MAX = 4_096  # of a control request that is small while memory is short
RECORDS_API_KEY = 0  # Produce: the only API whose requests carry records
FETCH_API_KEY = 1
READ_ON_THE_SPOT = frozenset({RECORDS_API_KEY, FETCH_API_KEY})  # never wait for their turn
# In eighths of the budget.
SMALL_SHARE, USUAL_SHARE, LARGE_SHARE, CONTROL_SHARE = 1, 2, 4, 1
# How often a frame is looked at in the time that it has: with few who wait, with many.
LOOKS_PER_FRAME_MIN, LOOKS_PER_FRAME_MAX = 6, 30
FEW_WAITING = 8
LATE_LOOKS = 2.0  # A look is late after so many times the time that it was to come in.


class Claimant(Protocol):
    """A connection, as the memory of requests knows it."""

    @property
    def client_host(self) -> str:
        """Where the client is."""

    @property
    def arrived_bytes(self) -> int:
        """How much of the unfinished frame has come."""

    @property
    def unsent_bytes(self) -> int:
        """How much of its answers the client has not taken."""

    @property
    def is_held_up(self) -> bool:
        """Whether the node does not read from the client for reasons of its own."""

    def on_memory(self) -> None:
        """Make the same claim again: it is granted now."""

    def release_idle_buffer(self) -> None:
        """Let go of a buffer that holds nothing."""

    def close(self, reason: str = "", *, is_expected: bool = True) -> None:
        """Close the connection."""


class _Line:
    """The queue of waiting claims. Hosts take turns; within a host the oldest claim is first."""

    def __init__(self) -> None:
        self._of_host: dict[str, dict[Claimant, int]] = {}
        self.count = 0

    def add(self, claimant: Claimant, size_bytes: int) -> None:
        """Have it wait behind those of its host; a host that is new waits behind the others."""
        self._of_host.setdefault(claimant.client_host, {})[claimant] = size_bytes
        self.count += 1

    def first(self) -> tuple[Claimant, int]:
        """Return whose turn it is, and the bytes that it wants."""
        return next(iter(next(iter(self._of_host.values())).items()))

    def remove(self, claimant: Claimant) -> None:
        """Take it out if it is in; its host's next turn comes after the other hosts'."""
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
    """A part of the budget and the frames that it is for."""

    bytes_max: int
    held_bytes: int = 0
    under_way: dict[Claimant, None] = field(default_factory=dict)  # granted, not whole yet
    waiting: _Line = field(default_factory=_Line)
    held: dict[Claimant, None] = field(default_factory=dict)  # bytes of paused connections
    idle: dict[Claimant, None] = field(default_factory=dict)  # keep a buffer for the next frame


@dataclass(slots=True)
class _Claim:
    share: _Share
    held_bytes: int
    is_promised: bool = False  # granted, and the claimant does not know yet
    seen_bytes: int = -1  # had come when progress was last looked at; -1: not looked at yet


@dataclass(slots=True)
class _Answer:
    held_bytes: int
    seen_bytes: int = -1  # were unsent when that was last looked at; -1: not looked at yet


class RequestMemory:
    """Who holds how much, and who waits. All of it belongs to one loop."""

    def __init__(
        self,
        bytes_max: int,
        *,
        frame_seconds_max: float,
        loop: asyncio.AbstractEventLoop,
        on_short: Callable[[bool], None],
    ) -> None:
        """``on_short`` is told when the whole budget is taken, and when no longer."""
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
        self._paused = _Share(0)  # No claim is made of it, so nobody waits for it.
        self._unanswered_bytes = 0  # of control requests, and of answers that are not taken
        self._claims: dict[Claimant, _Claim] = {}
        self._answers: dict[Claimant, _Answer] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._is_grant_due = False

    @property
    def waiting_count(self) -> int:
        """How many connections wait for memory."""
        return sum(share.waiting.count for share in self._shares())

    def claim(
        self, claimant: Claimant, size_bytes: int, *, arrived_bytes: int, api_key: int
    ) -> bool:
        """Return whether the claimant may receive a frame of this size; replaces its last claim.

        Otherwise ``on_memory`` will be called, once, and until then ``arrived_bytes`` count.
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
        if self._looking is None:
            self._look_later()
        return False

    def hold(self, claimant: Claimant, size_bytes: int) -> None:
        """Count bytes of a paused connection, which has them already; replaces its last claim."""
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
        """Give back what the claimant holds and take it out of the line."""
        self._drop(claimant)

    def add_control(self, size_bytes: int) -> None:
        """Count a control request until ``give_back_control``."""
        self._count_unanswered(size_bytes)

    def give_back_control(self, size_bytes: int) -> None:
        """Give back what ``add_control`` counted."""
        self._count_unanswered(-size_bytes)

    def hold_answer(self, claimant: Claimant, size_bytes: int) -> None:
        """Count answers that the claimant's client has yet to take; replaces the last count."""
        answer = self._answers.get(claimant)
        if answer is None:
            answer = self._answers[claimant] = _Answer(0)
        added_bytes = size_bytes - answer.held_bytes
        answer.held_bytes = size_bytes
        if answer.seen_bytes >= 0:
            answer.seen_bytes += max(added_bytes, 0)  # which were not there to be taken
        self._count_unanswered(added_bytes)
        if self._is_wanted() and self._looking is None:
            self._look_later()

    def release_answer(self, claimant: Claimant) -> None:
        """Give back what ``hold_answer`` counted."""
        answer = self._answers.pop(claimant, None)
        if answer is not None:
            self._count_unanswered(-answer.held_bytes)

    # -- inside

    def _is_wanted(self) -> bool:
        """Return whether there is too little memory for those who are here."""
        return self.is_short or self.waiting_count > 0

    def _shares(self) -> tuple[_Share, ...]:
        return self._small, self._usual, self._large, self._control

    def _share_for(self, size_bytes: int, api_key: int) -> _Share:
        """Return the share for a frame.

        While memory is short a control request is small only if it is received at once:
        what is larger must not gather, request after request, until each has its turn.
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

        A control request still counts when its frame is whole. So what does not fit its share
        needs room in the whole budget, unless there is nothing to wait for.
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
        # Not at once: the claimant that gives back is in the middle of something.
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

    def _look_later(self) -> None:
        looks_per_frame = LOOKS_PER_FRAME_MIN * self.waiting_count / FEW_WAITING
        looks_per_frame = max(looks_per_frame, LOOKS_PER_FRAME_MIN)
        seconds = self._frame_seconds_max / min(looks_per_frame, LOOKS_PER_FRAME_MAX)
        self._looking = self._loop.call_later(seconds, self._look, self._loop.time(), seconds)

    def _look(self, began: float, due_seconds: float) -> None:
        """Close those that hold memory for which others wait, and do not bring their frame."""
        self._looking = None
        seconds = self._loop.time() - began
        if seconds > LATE_LOOKS * due_seconds:
            self._forget_looks()
        for share in self._shares():
            if not share.waiting.count:
                continue
            for claimant in tuple(share.under_way):
                claim = self._claims.get(claimant)
                if claim is not None:
                    self._look_at(claimant, claim, seconds)
        if self._is_wanted():
            for claimant in tuple(self._paused.held):
                claim = self._claims.get(claimant)
                # Where more is unsent than before, it took enough for its requests to go on.
                if claim is not None and not claimant.is_held_up:
                    if 0 <= claim.seen_bytes < claimant.unsent_bytes:
                        claim.seen_bytes = -1
                    self._look_at_answer(claimant, claim, seconds)
            for claimant, answer in tuple(self._answers.items()):
                self._look_at_answer(claimant, answer, seconds)
            self._look_later()

    def _forget_looks(self) -> None:
        """Have everybody looked at as if for the first time."""
        for claim in self._claims.values():
            claim.seen_bytes = -1
        for answer in self._answers.values():
            answer.seen_bytes = -1

    def _look_at_answer(self, claimant: Claimant, answer: _Answer | _Claim, seconds: float) -> None:
        unsent_bytes = claimant.unsent_bytes
        taken_bytes = answer.seen_bytes - unsent_bytes
        is_first_look = answer.seen_bytes < 0
        answer.seen_bytes = unsent_bytes
        if is_first_look or not unsent_bytes:
            return
        if taken_bytes * self._frame_seconds_max < answer.held_bytes * seconds:
            claimant.close(
                f"{unsent_bytes} bytes of answers have not been taken, {taken_bytes} were in the "
                f"last {seconds:.1f} s, while others wait for memory: see "
                "queued.max.request.bytes",
                is_expected=False,
            )

    def _look_at(self, claimant: Claimant, claim: _Claim, seconds: float) -> None:
        arrived_bytes = claimant.arrived_bytes
        came_bytes = arrived_bytes - claim.seen_bytes
        is_first_look = claim.seen_bytes < 0
        claim.seen_bytes = arrived_bytes
        if is_first_look or claimant.is_held_up:
            return
        if came_bytes * self._frame_seconds_max < claim.held_bytes * seconds:
            claimant.close(
                f"{arrived_bytes} of {claim.held_bytes} bytes of a request have come, "
                f"{came_bytes} of them in the last {seconds:.1f} s, while others wait "
                "for memory: see queued.max.request.bytes",
                is_expected=False,
            )
