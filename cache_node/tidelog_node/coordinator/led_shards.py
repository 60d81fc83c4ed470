"""The shards of a reserved topic that this node leads; each is loaded once a leader term.

A coordinator's state belongs to shards, and a shard to the leader of that partition of the topic.
``LedShards`` takes shards over and drops them as the cluster's image says; ``LedShard`` is one of
them during one leader term. For the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar
from uuid import UUID

from tidelog_core.errors import NotCoordinator, TidelogError
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.node_context import NodeContext


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader term of a shard. In another term everything is loaded again."""

    topic_id: UUID
    leader_epoch: int


class LedShard(ABC):
    """One shard during one leader term. Its state is loaded once and unloaded at the end."""

    kind: ClassVar[str]  # the name of its state in errors

    def __init__(self, index: int, leadership: Leadership, store: MetadataStore) -> None:
        self.index = index
        self.leadership = leadership
        self.is_closed = False
        self._store = store
        self._is_loaded = False
        self._loading: asyncio.Task[TidelogError | None] | None = None

    def begin_loading(self) -> None:
        """Load in the background, so that deadlines do not wait for a request."""
        if not self._is_loaded and self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def loaded(self) -> None:
        """Wait until everything is loaded. Raises the error of the loading."""
        while not self._is_loaded:
            self.begin_loading()
            assert self._loading is not None
            error = await asyncio.shield(self._loading)
            self.check_open()
            if error is not None:
                raise error

    async def close(self) -> None:
        """Send waiting clients to the next coordinator, and finish the writes in progress."""
        self.is_closed = True
        if self._loading is not None:
            await asyncio.wait([self._loading])
        await self._unload_all()

    def check_open(self) -> None:
        """Raise ``NotCoordinator`` once the shard has moved elsewhere."""
        if self.is_closed:
            raise NotCoordinator(f"{self.kind} shard {self.index} has moved")

    async def _load(self) -> TidelogError | None:
        try:
            await self._read_all()
            self._is_loaded = True
        except TidelogError as error:
            return error
        finally:
            self._loading = None
        return None

    @abstractmethod
    async def _read_all(self) -> None:
        """Read the shard's state. Raises ``TidelogError``; then nothing is loaded."""

    @abstractmethod
    async def _unload_all(self) -> None:
        """Release the state in memory. The shard is closed."""


ShardT = TypeVar("ShardT", bound=LedShard)


class LedShards(Generic[ShardT]):
    """Every shard of one reserved topic that this node leads."""

    def __init__(
        self,
        node: NodeContext,
        topic: str,
        *,
        open_shard: Callable[[int, Leadership], ShardT],
        on_drop: Callable[[ShardT], None] = lambda _: None,
    ) -> None:
        """``on_drop`` is called before a shard is closed."""
        self._node = node
        self._topic = topic
        self._open_shard = open_shard
        self._on_drop = on_drop
        self._shards: dict[int, ShardT] = {}
        self._followed: ClusterImage | None = None
        self._is_following = True
        self._closing: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[ShardT]:
        """Iterate over the shards at this moment."""
        return iter(tuple(self._shards.values()))

    def start(self) -> None:
        """Start to follow the cluster's image."""
        self._unsubscribe = self._node.view.subscribe(lambda image, _: self.follow(image))
        self.follow(self._node.view.image)

    def stop(self) -> None:
        """Take over no more shards."""
        self._is_following = False
        self._unsubscribe()

    async def close(self) -> None:
        """Drop all shards; return when they have released everything."""
        for index in tuple(self._shards):
            self._drop(index)
        while self._closing:
            await asyncio.wait(self._closing)

    def get(self, index: int) -> ShardT | None:
        """Return the shard if this node leads it, as far as is known."""
        return self._shards.get(index)

    def find(self, index_among: Callable[[int], int]) -> ShardT | None:
        """Return a shard by its index among all; ``None`` if another node leads it."""
        self.follow(self._node.view.image)
        partitions = self._node.view.image.partitions(self._topic)
        return self._shards.get(index_among(len(partitions))) if partitions else None

    def follow(self, image: ClusterImage) -> None:
        """Take over the shards that this node leads now, drop the others."""
        if image is self._followed or not self._is_following:
            return
        self._followed = image
        ours = {
            partition.partition: Leadership(partition.topic_id, partition.leader_epoch)
            for partition in image.partitions(self._topic)
            if self._node.membership.leads(partition)
        }
        for index, shard in tuple(self._shards.items()):
            if ours.get(index) != shard.leadership:
                self._drop(index)
        for index, leadership in ours.items():
            if index not in self._shards:
                shard = self._open_shard(index, leadership)
                self._shards[index] = shard
                shard.begin_loading()

    def _drop(self, index: int) -> None:
        shard = self._shards.pop(index)
        self._on_drop(shard)
        closing = asyncio.create_task(shard.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
