"""A reader's view of a growing chain: which objects are committed, and which of them are new.

    round: list from ``end`` on → ``on_listed`` → read footers that ``wanted`` names → ``take``

Data objects below ``end`` are committed. ``end`` moves over an object that is there, and over one
that is not if a header says that it has existed: then it was collected, and the tier has its
records. A listing may be older than that header, as it comes in pages. So a missing object counts
as collected by a listing alone that began after the header was read: ``is_unsettled`` asks for it.

A seal at ``end`` may be a late one, in the place of an object that was collected after the listing
had named it. It ends the chain once a listing that began after it was read shows nothing above that
says so (``ChainRules.confirms_found_seals``). Until then it only stops the walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.chain.store import ListedObject
from tidelog_core.diskless.wal.footer import WalFooter

FOOTERS_AT_ONCE = 64
# Above the first missing object. Owners have a few in flight; more are not worth their memory.
AHEAD_COUNT_MAX = 1_024


class ChainFollower:
    """One chain. Used by one task; a round that was broken off is begun again."""

    def __init__(self, rules: ChainRules | None = None) -> None:
        self.end = 0  # the first sequence that is not known to be committed
        self.is_sealed = False  # for good: nothing is committed from ``end`` on
        self.collected_end = 0  # objects below may be missing: the tier has them
        self.is_unsettled = False  # another listing may move the end
        self._rules = rules or ChainRules()
        self._known_end = 0  # every lower sequence has existed
        self._known_before = 0  # ``_known_end`` when the listing began
        self._footers: dict[int, WalFooter] = {}  # read, at ``end`` or above
        self._unread: dict[int, ListedObject] = {}  # listed, in order
        self._last: ListedObject | None = None  # of those, to be read first
        self._seen_seals: set[int] = set()  # they were read before the listing began

    def start(self) -> int:
        """Begin a round: list the chain from the returned sequence on."""
        self._known_before = self._known_end
        self._seen_seals = {n for n, footer in self._footers.items() if footer.is_seal}
        self.is_unsettled = False
        return self.end

    def on_listed(self, listed: Sequence[ListedObject]) -> None:
        """The listing is complete."""
        self._unread = {
            one.sequence: one
            for one in sorted(listed)
            if one.sequence >= self.end and one.sequence not in self._footers
        }
        self._last = next(reversed(self._unread.values()), None)

    def wanted(self) -> list[ListedObject]:
        """Return the objects whose footers are to be read now; none if the round is over."""
        # The last one's committed end says of most others what they are.
        if self._last is not None and len(self._unread) > FOOTERS_AT_ONCE:
            return [self._last]
        if self._is_missing() and self.end >= self._known_before:
            return []
        room = max(0, AHEAD_COUNT_MAX - len(self._footers))
        found = list(islice(self._unread.values(), FOOTERS_AT_ONCE))
        return [one for n, one in enumerate(found) if n < room or one.sequence < self._known_end]

    def on_footers(self, footers: Mapping[int, WalFooter | None]) -> None:
        """Footers were read; ``None`` if the object is gone since it was listed."""
        for sequence, footer in footers.items():
            self._unread.pop(sequence, None)
            if self._last is not None and self._last.sequence == sequence:
                self._last = None
            if footer is None:
                self.is_unsettled = True
            else:
                self._footers[sequence] = footer
        headers = [footer.header for footer in footers.values() if footer is not None]
        self._known_end = self._rules.known_end(self._known_end, headers)

    def take(self) -> list[WalFooter]:
        """Return the footers of objects that are committed, in order, and not returned before."""
        taken: list[WalFooter] = []
        while (footer := self._next()) is not None or self._is_missing():
            if footer is None:
                if self.end >= self._known_before:
                    self.is_unsettled = True
                    return taken
                self.collected_end = self.end + 1
            elif not footer.is_seal:
                taken.append(footer)
            self._footers.pop(self.end, None)
            self.end += 1
        return taken

    def _is_missing(self) -> bool:
        """Whether the object at the end has existed, and is not in the listing."""
        is_there = self.end in self._unread or self.end in self._footers
        return self.end < self._known_end and not is_there

    def _next(self) -> WalFooter | None:
        """Return the object at the end, unless it is a seal that stops the walk."""
        footer = self._footers.get(self.end)
        if footer is None or not footer.is_seal or self.end < self._known_end:
            return footer
        if self.end in self._seen_seals or not self._rules.confirms_found_seals():
            self.is_sealed = not self.wanted()  # What is listed above it is to be read first.
        return None
