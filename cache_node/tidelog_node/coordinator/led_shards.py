"""The shards of a reserved topic that this node leads; each is loaded once a leader term.

What a coordinator keeps belongs to a shard, a shard to the leader of that partition of the
topic. ``LedShards`` takes shards over and drops them as the cluster's image says;
``LedShard`` is one of them during one leader term. For the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar
from uuid import UUID

from tidelog_core.errors import NotCoordinator, TidelogError
from tidelog_core.metadata.image import ClusterImage
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.node_context import NodeContext


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader term of a shard. With another one everything is loaded again."""

    topic_id: UUID
    leader_epoch: int


class LedShard(ABC):
    """One shard during one leader term. What it holds is loaded once, and unloaded at the end."""

    kind: ClassVar[str]  # what errors call what it holds

    def __init__(self, index: int, leadership: Leadership, store: MetadataStore) -> None:
        self.index = index
        self.leadership = leadership
        self.is_closed = False
        self._store = store
        self._is_loaded = False
        self._loading: asyncio.Task[TidelogError | None] | None = None

    def begin_loading(self) -> None:
        """Load in the background, so that what is due by itself does not wait for a request."""
        if not self._is_loaded and self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def loaded(self) -> None:
        """Wait until everything is there. Raises what kept it away."""
        while not self._is_loaded:
            self.begin_loading()
            assert self._loading is not None
            error = await asyncio.shield(self._loading)
            self.check_open()
            if error is not None:
                raise error

    async def close(self) -> None:
        """Send everyone who waits to the next coordinator, and finish what is being stored."""
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
        """Read what the shard holds. Raises ``TidelogError``; nothing is loaded then."""

    @abstractmethod
    async def _unload_all(self) -> None:
        """Let go of what is in memory. The shard is closed."""


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
        """``on_drop`` is called before one is closed."""
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
        """Go through the shards as they are now."""
        return iter(tuple(self._shards.values()))

    def start(self) -> None:
        """Begin to follow the cluster's image."""
        self._unsubscribe = self._node.view.subscribe(lambda image, _: self.follow(image))
        self.follow(self._node.view.image)

    def stop(self) -> None:
        """Take no more shards over."""
        self._is_following = False
        self._unsubscribe()

    async def close(self) -> None:
        """Drop all shards, and return when they have let go of everything."""
        for index in tuple(self._shards):
            self._drop(index)
        while self._closing:
            await asyncio.wait(self._closing)

    def get(self, index: int) -> ShardT | None:
        """Return the shard if it is ours, as far as is known."""
        return self._shards.get(index)

    def find(self, index_among: Callable[[int], int]) -> ShardT | None:
        """Return a shard of ours, by its index among so many, ``None`` if it is another node's."""
        self.follow(self._node.view.image)
        partitions = self._node.view.image.partitions(self._topic)
        return self._shards.get(index_among(len(partitions))) if partitions else None

    def follow(self, image: ClusterImage) -> None:
        """Take over shards that are ours now, drop those that are not."""
        if image is self._followed or not self._is_following:
            return
        self._followed = image
        ours = {
            partition.partition: Leadership(partition.topic_id, partition.leader_epoch)
            for partition in image.partitions(self._topic)
            if self._node.standing.leads(partition)
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
