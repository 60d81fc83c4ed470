"""One process's view of the cluster: the newest image, advanced by the changelog.

``ClusterView`` first loads everything. Each refresh then reads the keys that changed since the
image's version and builds the next image, which shares everything unchanged (``updates``).
An image may hold items that are newer than its version (they are read after the changelog); the
next refresh reads them again, so an image never stays behind.

Many changes are split into several images, with pauses between them, because subscribers' work
grows with the changes. All but the last have the previous version, so a refresh that is
interrupted starts again from there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping

from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.security_records import RIGHTS_COLLECTIONS, SECURITY_COLLECTIONS
from tidelog_core.metadata.image.updates import load_image, updated_images
from tidelog_core.metadata.store import ItemKey, MetadataStore
from tidelog_core.subscribers import Subscribers
from tidelog_core.waiting import wait_and_clear

logger = logging.getLogger(__name__)

POLLS_PER_S_MAX = 1500  # of all brokers; each reads the cluster version, and a key takes 3,000

# Called after every change with the new image and the names of the topics that were
# created, changed or deleted; the set is empty if only other records changed.
Subscriber = Callable[[ClusterImage, frozenset[str]], None]

# Called with logged changes of items that no image shows.
Watcher = Callable[[Collection[ItemKey]], None]


class ClusterView:
    """Keeps the newest image. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        read_again_seconds: float = 5.0,
        shows_security: bool = False,
        shows_rights: bool = False,
    ) -> None:
        """Unreadable items are read again that often: their repair may not be logged.

        Only processes that need credentials have images that show them.
        """
        self._store = store
        self._read_again_seconds = read_again_seconds
        self._read_again_at = time.monotonic()  # the unreadable items, last
        shown = SECURITY_COLLECTIONS if shows_security else RIGHTS_COLLECTIONS
        is_shown = shows_security or shows_rights
        # The newest image; empty until the first refresh. Only this view sets it. It is a plain
        # attribute because every small request reads it.
        self.image = ClusterImage(shown_security=frozenset(shown) if is_shown else frozenset())
        self._is_loaded = False
        self._subscribers = Subscribers[ClusterImage, frozenset[str]]()
        self._watchers: list[tuple[str, Watcher]] = []
        self._refreshing = asyncio.Lock()
        self._asked = 0  # refreshes requested
        self._answered = 0  # requested refreshes that a read begun after the request has served
        self._nudged = asyncio.Event()
        self._changed = asyncio.Event()
        self._read_at = -math.inf  # when the last reading ended that did not fail
        self.failure = ""  # why the last reading of ``run`` has failed, "" if it has not

    def seconds_since_read(self) -> float:
        """Return how long ago the store was read last; infinite if it never was."""
        return time.monotonic() - self._read_at

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back after every change, in the refresh that saw it. Returns the unsubscriber."""
        return self._subscribers.subscribe(callback)

    def watch(self, collection_prefix: str, callback: Watcher) -> Callable[[], None]:
        """Call back with changed items of collections that are not in the image. Returns a remover.

        Called in the refresh that read the changes, after the image was published. Changes before
        the first refresh, and those missed when this view was too far behind, are not reported.
        """
        watcher = (collection_prefix, callback)
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def nudge(self) -> None:
        """Make ``run`` refresh now instead of at its next interval."""
        self._nudged.set()

    async def refresh(self) -> ClusterImage:
        """Return an image that shows every commit that ended before this call.

        Calls that wait for the same reading share it. Raises ``StoreUnavailable``.
        """
        self._asked += 1
        ticket = self._asked
        async with self._refreshing:
            if self._answered < ticket:
                answers = self._asked
                await self._advance()
                self._answered = answers
                self._read_at = time.monotonic()
        return self.image

    async def run(self, poll_interval: float) -> None:
        """Refresh every ``poll_interval`` seconds and on every nudge, until cancelled.

        Less often if there are so many brokers that their polls together would exceed
        ``POLLS_PER_S_MAX``.
        """
        is_available = True
        while True:
            try:
                await self.refresh()
                if not is_available:
                    logger.info("metadata store answers again")
                is_available = True
                self.failure = ""
            except StoreUnavailable as error:
                if is_available:
                    logger.warning("metadata store is away", extra={"reason": str(error)})
                is_available = False
                self.failure = str(error)
            await wait_and_clear(self._nudged, poll_seconds(self.image, poll_interval))

    async def wait_for(
        self, predicate: Callable[[ClusterImage], bool], timeout: float | None
    ) -> ClusterImage:
        """Return the first image that satisfies the predicate. Raises ``TimeoutError``.

        New images need ``run``, or refreshes by other callers.
        """
        async with asyncio.timeout(timeout):
            while not predicate(self.image):
                await self._changed.wait()
        return self.image

    async def _advance(self) -> None:
        before = self.image
        if not self._is_loaded:
            self._show(await load_image(self._store, before))
            return
        changes = await self._store.changes_since(before.version)
        if changes.keys is None:
            self._show(await load_image(self._store, before))
            return
        keys = changes.keys | self._to_read_again(before)
        if changes.version == before.version and not keys:
            return
        async for after in updated_images(self._store, before, changes.version, keys):
            self._show(after)
        for prefix, watcher in tuple(self._watchers):
            watched = [key for key in keys if key.collection.startswith(prefix)]
            if watched:
                watcher(watched)

    def _show(self, after: ClusterImage) -> None:
        """Publish it as the newest image and call the subscribers."""
        before = self.image
        _log_damage(before.unreadable, after.unreadable)
        if self._is_loaded and after == before:
            return  # The unreadable items still are, and nothing else has changed.
        self.image = after
        self._is_loaded = True
        self._changed.set()
        self._changed = asyncio.Event()
        self._subscribers.notify(after, _changed_topics(before, after))

    def _to_read_again(self, image: ClusterImage) -> frozenset[ItemKey]:
        now = time.monotonic()
        if not image.unreadable or now - self._read_again_at < self._read_again_seconds:
            return frozenset()
        self._read_again_at = now
        return frozenset(image.unreadable)


def poll_seconds(image: ClusterImage, poll_interval: float) -> float:
    """Return the time between two readings, for nodes that should have ``poll_interval``."""
    return max(poll_interval, len(image.brokers) / POLLS_PER_S_MAX)


def _log_damage(before: Mapping[ItemKey, str], after: Mapping[ItemKey, str]) -> None:
    """Log once that an item has become unreadable, and once that it is readable again."""
    for key in after:
        if key not in before:
            logger.error(
                "metadata item cannot be read",
                extra={"collection": key.collection, "key": key.key, "reason": after[key]},
            )
    for key in before:
        if key not in after:
            logger.info(
                "metadata item is in order again or gone",
                extra={"collection": key.collection, "key": key.key},
            )


def _changed_topics(before: ClusterImage, after: ClusterImage) -> frozenset[str]:
    """Return the topics that differ. Unchanged ones are shared, so identity is compared."""
    names = set(before.topics.keys() - after.topics.keys())
    names.update(n for n, topic in after.topics.items() if before.topics.get(n) is not topic)
    known = before.partitions_by_topic
    names.update(
        after.topic_names[topic_id]
        for topic_id, partitions in after.partitions_by_topic.items()
        if known.get(topic_id) is not partitions
    )
    return frozenset(names)
