"""The pages of committed offsets that this node wrote last, so that it need not read them again."""

from __future__ import annotations

from collections import OrderedDict

from tidelog_core.metadata.coordination.groups import GroupOffsets
from tidelog_core.metadata.store import ItemKey
from tidelog_core.subscribers import Subscribers

PAGES_CACHED_MAX = 8192  # of all groups of a node


class WriterTerm:
    """A period in which only this coordinator has written a group, as far as it knows."""


class OffsetPageCache:
    """The pages written last, so that the next commit need not read them first.

    A page is valid only in the term in which it was written. Between two terms of a group another
    process may have deleted the page and written it again, up to the very version that is
    remembered here.
    """

    def __init__(self) -> None:
        self.written = Subscribers[GroupOffsets]()  # with each page, as it was written
        self._pages: OrderedDict[ItemKey, tuple[WriterTerm, GroupOffsets]] = OrderedDict()

    def get(self, id: ItemKey, term: WriterTerm) -> GroupOffsets | None:
        """Return the page as last written in the term, ``None`` if that is unknown."""
        found = self._pages.get(id)
        if found is None or found[0] is not term:
            return None
        self._pages.move_to_end(id)
        return found[1]

    def keep(self, page: GroupOffsets, term: WriterTerm) -> None:
        """Remember the page; forget the least recently used page if there are too many."""
        self.written.notify(page)
        self._pages[page.item_id] = (term, page)
        self._pages.move_to_end(page.item_id)
        if len(self._pages) > PAGES_CACHED_MAX:
            self._pages.popitem(last=False)

    def forget(self, id: ItemKey) -> None:
        """Forget the page, so that it is read before the next write."""
        self._pages.pop(id, None)
