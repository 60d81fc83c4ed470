"""Builds the requests of an incremental fetch session (KIP-227) for a fetcher.

Theory of operation. For each session, the node keeps the partitions that the fetcher wants and
their fetch offsets. A *full* fetch has session epoch 0, lists all partitions and requests a
session. The node's answer has the id of the new session, or 0 if it refuses one. Each later
fetch is *incremental*: its epoch is one higher, and it names only partitions that are new, have
changed, or must be removed. The answer leaves out every partition without news.

Fetcher and node must agree on the content of the session, so:

- Any doubt ends the session: an error of the whole answer, a missing answer, one that does not
  match. The next fetch is full. It names the old id, so that the node removes that session.
- A partition that is removed and wanted again is removed in one fetch and named in a later one.
  The node then treats it as new, and sends its high watermark and log start offset again.
- A partition whose records arrived must be named with its next offset, or be removed: otherwise
  the node would send the same records again.

One fetch names a bounded number of new partitions, and later fetches name the others. It names
all partitions that have moved and all to be removed, up to the limit of one fetch; above the
limit, a full fetch starts another session. A node that refuses a session, or does not let it
grow, gets all partitions with every fetch. If they exceed the limit of one fetch, each fetch
names a part of them in rotation. A node that does not let a session grow is asked for none for a
while, because its session would always have the same partitions.

Source: KIP-227; Kafka's ``FetchSessionHandler``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from tidelog_core.errors import ErrorCode
from tidelog_core.fetch_epochs import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, epoch_after

GROWTH_RETRY_SECONDS = 120.0  # a node has room once it may end sessions unused for so long

SESSION_ERRORS = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)
"""Errors of a whole answer after which a full fetch is sent immediately."""

Key = TypeVar("Key", bound=Hashable)
Wanted = TypeVar("Wanted")


class FetchPlan(NamedTuple, Generic[Key, Wanted]):
    """The content of one fetch. No dataclass: mypyc makes none that is generic."""

    session_id: int
    session_epoch: int
    named: list[tuple[Key, Wanted]]
    forgotten: list[Key]
    # Whether the node may hold this fetch until there is news. False while a session is
    # requested or partitions are still to be named.
    may_wait: bool


class FetcherSession(Generic[Key, Wanted]):
    """The fetcher's side of its sessions with one node, one after the other.

    ``Wanted`` has the fetch parameters of a partition; equal values mean no change. The cost
    grows with the changes: only a full fetch iterates over all partitions.
    """

    def __init__(self, *, new_max: int, named_max: int, clock_s: Callable[[], float]) -> None:
        """Set the bounds of one fetch.

        ``new_max`` bounds the partitions added to the session, ``named_max`` all named partitions,
        removed ones included. ``clock_s`` only measures durations.
        """
        self._new_max = new_max
        self._named_max = named_max
        self._clock_s = clock_s
        self._wanted: dict[Key, Wanted] = {}  # the last changed ones at the end
        # Of this session, or of the last fetch without one: the parameters sent to the node.
        self._sent: dict[Key, Wanted] = {}
        # Wanted with unsent parameters, oldest first: those not in the session, and those in it.
        self._new: dict[Key, None] = {}
        self._moved: dict[Key, None] = {}
        self._to_forget: dict[Key, None] = {}  # sent, and to be removed first
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH  # of the next fetch
        self._is_declined = False  # the last full fetch got no session, or one that may not grow
        self._has_grown = False  # by a fetch under way
        self._grows_from = float("-inf")  # ``clock_s`` from which a session may grow
        self._is_full_under_way = False
        self._under_way_count = 0

    def __len__(self) -> int:
        """Return how many partitions are wanted."""
        return len(self._wanted)

    @property
    def is_established(self) -> bool:
        """Whether the next fetch is an incremental one."""
        return self._epoch != INITIAL_EPOCH and not self._is_full_under_way

    @property
    def is_declined(self) -> bool:
        """Whether the node gave no session at the last request for one."""
        return self._is_declined

    @property
    def has_news(self) -> bool:
        """Whether the next fetch has to name a partition."""
        return bool(self._new or self._moved or self._to_forget) or self._epoch == INITIAL_EPOCH

    def last_asked(self, key: Key) -> Wanted | None:
        """Return the parameters last sent for the partition, ``None`` if there were none."""
        return self._sent.get(key)

    # -- wanted partitions --

    def want(self, key: Key, wanted: Wanted) -> None:
        """Fetch the partition with these parameters from the next fetch on."""
        self._wanted.pop(key, None)
        self._wanted[key] = wanted
        if key in self._to_forget or key not in self._sent:
            self._new[key] = None
        elif self._sent[key] != wanted:
            self._moved[key] = None
        else:
            self._moved.pop(key, None)

    def forget(self, key: Key) -> None:
        """Stop fetching the partition."""
        if self._wanted.pop(key, None) is None:
            return
        self._new.pop(key, None)
        self._moved.pop(key, None)
        if key in self._sent:
            self._to_forget[key] = None

    def replace(self, wanted: Mapping[Key, Wanted]) -> None:
        """Want exactly these partitions. Iterates over all of them."""
        for key in [key for key in self._wanted if key not in wanted]:
            self.forget(key)
        for key, value in wanted.items():
            if self._wanted.get(key) != value:
                self.want(key, value)

    # -- fetches and their answers --

    def next_fetch(self) -> FetchPlan[Key, Wanted] | None:
        """Return the next fetch, ``None`` if no partition is wanted.

        No fetch may be under way before a full one. Also returns ``None`` if a full fetch is
        needed while another one is under way.
        """
        if not self._wanted:
            return None
        if len(self._to_forget) > self._named_max:
            if self._under_way_count:
                return None
            self.restart()
        self._under_way_count += 1
        return self._next_full() if self._epoch == INITIAL_EPOCH else self._next_incremental()

    def last_fetch(self) -> FetchPlan[Key, Wanted] | None:
        """Return a fetch that ends the node's session, ``None`` if there is no session."""
        session_id, self._id = self._id, NO_SESSION
        self.restart()
        if session_id == NO_SESSION:
            return None
        return FetchPlan(session_id, FINAL_EPOCH, [], [], False)

    def on_answer(self, error: ErrorCode, session_id: int, answered: Collection[Key]) -> bool:
        """Take the answer to the oldest fetch under way; return whether it may be used.

        ``answered`` are its partitions. If it may not, the next fetch is full.
        """
        is_full, self._is_full_under_way = self._is_full_under_way, False
        self._under_way_count -= 1
        if error is not ErrorCode.none:
            if error is ErrorCode.fetch_session_id_not_found:
                self._id = NO_SESSION
                self._is_declined = self._has_grown
                if self._has_grown:
                    self._grows_from = self._clock_s() + GROWTH_RETRY_SECONDS
            self.restart()
            return False
        if is_full:
            self._id, self._is_declined = session_id, session_id == NO_SESSION
            if set(answered) != self._sent.keys():
                self.restart()
                return False
            if self._is_declined:
                self._epoch = INITIAL_EPOCH
            return True
        # A partition removed by a fetch under way may still be in the answer to the one before.
        is_ours = self._under_way_count > 0 or all(key in self._sent for key in answered)
        if session_id == NO_SESSION and is_ours:
            self._id = NO_SESSION
            self._epoch = INITIAL_EPOCH  # The node has closed the session; this answer is valid.
            return True
        if session_id != self._id or not is_ours:
            self.restart()
            return False
        self._has_grown = self._has_grown and self._under_way_count > 0
        return True

    def restart(self) -> None:
        """Begin with a full fetch: an answer will not come, or cannot be used."""
        self._epoch = INITIAL_EPOCH
        self._is_full_under_way = self._has_grown = False
        self._under_way_count = 0
        self._sent.clear()
        self._new.clear()
        self._moved.clear()
        self._to_forget.clear()

    def _next_full(self) -> FetchPlan[Key, Wanted]:
        assert self._under_way_count == 1, "a full fetch comes alone"
        named_max = self._named_max if self._is_declined else self._new_max
        named = list(islice(self._wanted.items(), named_max))
        self._sent = dict(named)
        self._to_forget.clear()
        is_whole = len(named) == len(self._wanted)
        if self._is_declined and not is_whole:
            for key, wanted in named:  # The others have their turn next.
                del self._wanted[key]
                self._wanted[key] = wanted
        rest = () if is_whole else (key for key in self._wanted if key not in self._sent)
        self._new = dict.fromkeys(rest)
        self._moved.clear()
        self._is_full_under_way = True
        self._epoch = INITIAL_EPOCH + 1
        must_grow = self._is_declined and not is_whole
        may_ask = not must_grow or self._clock_s() >= self._grows_from
        epoch = INITIAL_EPOCH if may_ask else FINAL_EPOCH
        return FetchPlan(self._id, epoch, named, [], self._is_declined)

    def _next_incremental(self) -> FetchPlan[Key, Wanted]:
        epoch = self._epoch
        self._epoch = epoch_after(epoch)
        forgotten = list(self._to_forget)
        self._to_forget.clear()
        for key in forgotten:
            del self._sent[key]
        room = self._named_max - len(forgotten)
        gone = set(forgotten)
        new: list[tuple[Key, Wanted]] = []
        for key in self._new:  # Compiled, a generator of those to name would be a list.
            if len(new) >= min(room, self._new_max):
                break
            if key not in gone:
                new.append((key, self._wanted[key]))
        for key, wanted in new:
            del self._new[key]
            self._sent[key] = wanted
        self._has_grown = self._has_grown or bool(new)
        moved = [(key, self._wanted[key]) for key in islice(self._moved, room - len(new))]
        for key, wanted in moved:
            del self._moved[key]
            self._sent[key] = wanted
        return FetchPlan(self._id, epoch, moved + new, forgotten, not self.has_news)
