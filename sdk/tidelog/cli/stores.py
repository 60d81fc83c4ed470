"""Opening a cluster's stores without a node, where ``--data-dir`` or URLs say they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from tidelog.cli.failures import CommandFailed, UsageError
from tidelog.cli.output import note

if TYPE_CHECKING:
    from tidelog_core.metadata.image import ClusterImage
    from tidelog_core.metadata.store import MetadataStore
    from tidelog_core.objects.store import ObjectStore

METADATA_FILE = "metadata.db"
OBJECTS_FOLDER = "objects"
TOPICS_SHOWN_MAX = 5

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="TIDELOG_DATA_DIR",
        help="Data directory of a cluster on this machine, as given to 'tidelog up'.",
        show_default=False,
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="TIDELOG_METADATA_STORE",
        metavar="URL",
        help="Metadata store: sqlite:///path or dynamodb://table?region=…",
        show_default=False,
    ),
]
Objects = Annotated[
    str | None,
    typer.Option(
        "--objects",
        envvar="TIDELOG_OBJECT_STORE",
        metavar="URL",
        help="Object store: file:///path or s3://bucket/prefix.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class StoreLocations:
    """Where a cluster's truth and its tier are."""

    metadata: str
    objects: str | None  # None where the command does not read objects


def locate_stores(
    data_dir: Path | None, metadata: str | None, objects: str | None, *, needs_objects: bool
) -> StoreLocations:
    """Return the URLs. A URL given goes before the data directory's own.

    Raises ``UsageError`` where too little is given. Opening a store that is not there
    would make one, so a local path that does not exist is a ``CommandFailed``.
    """
    if data_dir is not None:
        if not data_dir.is_dir():
            raise CommandFailed(f"there is no data directory {data_dir}")
        metadata = metadata or f"sqlite://{data_dir.absolute() / METADATA_FILE}"
        objects = objects or f"file://{data_dir.absolute() / OBJECTS_FOLDER}"
    wanted = "--metadata and --objects" if needs_objects else "--metadata"
    if metadata is None or (needs_objects and objects is None):
        raise UsageError(f"where is the cluster? Give --data-dir, or {wanted}")
    require_local(metadata, "sqlite", "metadata store")
    if needs_objects and objects is not None and data_dir is None:
        require_local(objects, "file", "object store")
    return StoreLocations(metadata, objects if needs_objects else None)


@asynccontextmanager
async def opened_metadata(url: str) -> AsyncIterator[tuple[MetadataStore, ClusterImage]]:
    """Open the metadata store and read the cluster in it.

    Raises ``CommandFailed`` where there is none. Items that cannot be read are named on
    stderr, and are in the image's ``unreadable``.
    """
    from tidelog_core.metadata.image import ClusterView
    from tidelog_core.metadata.location import open_metadata_store

    store = open_metadata_store(url)
    try:
        image = await ClusterView(store).refresh()
        for key, problem in image.unreadable.items():
            note(f"metadata item {key.collection}/{key.key} cannot be read: {problem}")
        if not image.cluster_id:
            raise CommandFailed(f"the metadata store {url} holds no cluster")
        yield store, image
    finally:
        await store.close()


@asynccontextmanager
async def opened_objects(url: str) -> AsyncIterator[ObjectStore]:
    """Open the object store."""
    from tidelog_core.objects.location import open_object_store

    store = open_object_store(url)
    try:
        yield store
    finally:
        await store.close()


def select_topics(image: ClusterImage, names: list[str]) -> list[str]:
    """Return the topics named; where none is, all but the cluster's own, which hold no records.

    Raises ``CommandFailed`` for an unknown one, and for one that cannot be read.
    """
    for name in names:
        if image.topic(name) is None and image.is_unreadable(name):
            raise CommandFailed(f"what the metadata store holds of topic {name!r} cannot be read")
        if image.topic(name) is None:
            raise CommandFailed(f"there is no topic {name!r}{_suggest(name, list(image.topics))}")
    return names or [name for name, topic in image.topics.items() if not topic.is_internal]


def _suggest(name: str, known: list[str]) -> str:
    if not known:
        return "; there are none"
    near = get_close_matches(name, known, TOPICS_SHOWN_MAX, 0.4) or known[:TOPICS_SHOWN_MAX]
    return f"; there is {', '.join(near)}{', …' * (len(known) > len(near))}"


def require_local(url: str, scheme: str, what: str) -> None:
    """Raise ``CommandFailed`` where a local store is not there: opening it would make one."""
    parts = urlsplit(url)
    if parts.scheme == scheme and not Path(unquote(parts.path)).exists():
        raise CommandFailed(f"there is no {what} at {unquote(parts.path)}")
