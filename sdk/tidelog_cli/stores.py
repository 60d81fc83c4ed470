"""Opens a cluster's stores without a node, located by ``--data-dir`` or URLs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.output import note

if TYPE_CHECKING:
    from tidelog_core.metadata.image.cluster_image import ClusterImage
    from tidelog_core.metadata.store import MetadataStore

METADATA_FILE = "metadata.db"
OBJECTS_FOLDER = "objects"
_OR = ", or a --context with metadata.store and object.store"

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="TIDELOG_DATA_DIR",
        help="Data directory of a cluster on this machine, as for 'tidelog up'.",
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
FromBucket = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL",
        help="A bucket without a metadata store: s3://bucket/prefix or file:///path.",
        show_default=False,
    ),
]
ClusterId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The cluster to read if the bucket has several."),
]


@dataclass(frozen=True, slots=True)
class StoreLocations:
    """The URLs of a cluster's metadata store and object store."""

    metadata: str
    objects: str


def stores_in(data_dir: Path) -> StoreLocations:
    """Return the store URLs of a cluster on this machine."""
    folder = data_dir.absolute()
    return StoreLocations(f"sqlite://{folder / METADATA_FILE}", f"file://{folder / OBJECTS_FOLDER}")


def locate_stores(
    data_dir: Path | None, metadata: str | None, objects: str | None
) -> StoreLocations:
    """Return the URLs. An explicit URL has precedence over the data directory's.

    What neither gives is the context's.

    Raises ``UsageError`` if a URL is missing, ``CommandFailed`` for a data directory that does not
    exist, and ``StoreNotFound`` for a URL of this machine that leads nowhere, before anything is
    started.
    """
    if data_dir is None and (metadata is None or objects is None):
        data_dir, metadata, objects = _in_context(metadata, objects)
    if data_dir is not None:
        found = _existing_stores(data_dir)
        metadata, objects = metadata or found.metadata, objects or found.objects
    if metadata is None or objects is None:
        raise UsageError(f"no cluster given: give --data-dir, or --metadata and --objects{_OR}")
    # In a data directory a node makes the folder of objects when it starts.
    require_stores(metadata=metadata, objects=objects if data_dir is None else None)
    return StoreLocations(metadata, objects)


def require_stores(*, metadata: str | None = None, objects: str | None = None) -> None:
    """Raise ``StoreNotFound`` for a store of this machine that is not there."""
    if metadata is not None:
        from tidelog_core.metadata.location import require_metadata_store

        require_metadata_store(metadata)
    if objects is not None:
        from tidelog_core.objects.location import require_object_store

        require_object_store(objects)


def locate_metadata(data_dir: Path | None, metadata: str | None) -> str:
    """Return only the metadata store's URL, located as by ``locate_stores``."""
    if data_dir is None and metadata is None:
        data_dir, metadata, _ = _in_context(None, None)
    if data_dir is not None:
        metadata = metadata or _existing_stores(data_dir).metadata
    if metadata is None:
        raise UsageError(f"no cluster given: give --data-dir, or --metadata{_OR}")
    require_stores(metadata=metadata)
    return metadata


def _in_context(
    metadata: str | None, objects: str | None
) -> tuple[Path | None, str | None, str | None]:
    """Return the data directory and the URLs, with those of the context where none is given."""
    found = connection()
    folder = found.get("data.dir")
    metadata, objects = (
        metadata or found.get("metadata.store"),
        objects or found.get("object.store"),
    )
    return None if folder is None else Path(folder), metadata, objects


def _existing_stores(data_dir: Path) -> StoreLocations:
    if not data_dir.is_dir():
        raise CommandFailed(f"data directory {data_dir} does not exist: check --data-dir")
    return stores_in(data_dir)


@asynccontextmanager
async def opened_metadata(url: str) -> AsyncIterator[tuple[MetadataStore, ClusterImage]]:
    """Open the metadata store and read the cluster; report unreadable items on stderr.

    Raises ``ClusterNotFound``.
    """
    from tidelog_core.metadata.stored_cluster import describe_unreadable, opened_cluster

    async with opened_cluster(url) as (store, image):
        for problem in describe_unreadable(image):
            note(problem)
        yield store, image
