"""Reads a cluster from its metadata store, for programs that work without a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tidelog_core.errors import ClusterNotFound, UnknownTopicOrPartition
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.store import MetadataStore


@asynccontextmanager
async def opened_cluster(url: str) -> AsyncIterator[tuple[MetadataStore, ClusterImage]]:
    """Open the metadata store and read the cluster in it.

    Items that cannot be read are in the image's ``unreadable``. Raises ``ClusterNotFound``.
    """
    async with opened_metadata_store(url) as store:
        image = await ClusterView(store).refresh()
        if not image.cluster_id:
            raise ClusterNotFound(f"the metadata store {url} holds no cluster")
        yield store, image


def describe_unreadable(image: ClusterImage) -> list[str]:
    """Return a sentence for each metadata item that cannot be read."""
    return [
        f"metadata item {key.collection}/{key.key} cannot be read: {problem}"
        for key, problem in image.unreadable.items()
    ]


def select_topics(image: ClusterImage, names: Sequence[str]) -> list[str]:
    """Return the named topics; without names, all but the internal ones, which have no records.

    Raises ``UnknownTopicOrPartition``, also for an unreadable topic.
    """
    for name in names:
        if image.topic(name) is None and image.is_unreadable(name):
            problem = f"the metadata store's items of topic {name!r} cannot be read"
            raise UnknownTopicOrPartition(problem)
        if image.topic(name) is None:
            raise UnknownTopicOrPartition.of_topic(name, image.topics)
    return list(names) or [name for name, topic in image.topics.items() if not topic.is_internal]
