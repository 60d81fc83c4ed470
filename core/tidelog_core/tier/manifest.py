"""Small JSON objects that describe the bucket's content.

They are for people, and for restoring a cluster whose metadata store is lost; running nodes read
none but the store's identity. A leader replaces the manifests of the cluster and the topic when
they have changed: before it copies a segment, and with each round of retention. A store that is
accepted (``store_identity``) gets those of all topics.

The keys of some objects carry a log start offset or the deletion of a topic; their content is
for people. They are written after the metadata, and before the first object is deleted because of
them: after a crash they are late, and nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.records import DeletedTopic, Topic

if TYPE_CHECKING:
    from tidelog_core.metadata.image.cluster_image import ClusterImage

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterManifest:
    """The content of ``cluster.json``."""

    cluster_id: str

    def to_bytes(self) -> bytes:
        """Return the object."""
        return _encode({"kind": "cluster", "cluster_id": self.cluster_id})

    @classmethod
    def parse(cls, data: bytes, *, key: str = "cluster.json") -> ClusterManifest:
        """Return the manifest in ``data``. Raises ``CorruptObject``."""
        return cls(cluster_id=_text(_decode(data, key, "cluster"), key, "cluster_id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicManifest:
    """The content of ``topic.json``, from which the topic can be created again."""

    name: str
    topic_id: UUID
    partition_count: int
    created_ms: int  # Unix time
    replication_factor: int | None  # None: written by an older program, which did not store it
    configs: Mapping[str, str] = field(default_factory=dict)  # overrides only

    @classmethod
    def of(cls, topic: Topic, image: ClusterImage) -> TopicManifest:
        """Return the manifest of a topic as the metadata have it."""
        # During a reassignment the added replicas count and those being removed do not. Partitions
        # may differ permanently.
        counts = [len(set(p.replicas) - set(p.removing)) for p in image.partitions(topic.name)]
        return cls(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=topic.partition_count,
            created_ms=topic.created_ms,
            replication_factor=max(counts, default=None),
            configs=topic.configs,
        )

    def to_bytes(self) -> bytes:
        """Return the object."""
        fields: dict[str, object] = {
            "kind": "topic",
            "name": self.name,
            "topic_id": str(self.topic_id),
            "partition_count": self.partition_count,
            "created_ms": self.created_ms,
            "configs": dict(sorted(self.configs.items())),
        }
        if self.replication_factor is not None:
            fields["replication_factor"] = self.replication_factor
        return _encode(fields)

    @classmethod
    def parse(cls, data: bytes, *, key: str = "topic.json") -> TopicManifest:
        """Return the manifest in ``data``. Raises ``CorruptObject``."""
        fields = _decode(data, key, "topic")
        configs = fields.get("configs")
        if not isinstance(configs, dict) or not all(isinstance(v, str) for v in configs.values()):
            raise CorruptObject(key, "configs must map names to strings")
        try:
            topic_id = UUID(_text(fields, key, "topic_id"))
        except ValueError:
            raise CorruptObject(key, "topic_id must be a UUID") from None
        return cls(
            name=_text(fields, key, "name"),
            topic_id=topic_id,
            partition_count=_integer(fields, key, "partition_count"),
            created_ms=_integer(fields, key, "created_ms"),
            replication_factor=_replication_factor(fields, key),
            configs=configs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentityObject:
    """The content of ``object-store.json``, which tells the cluster's store from others."""

    store_id: str

    def to_bytes(self) -> bytes:
        """Return the object."""
        return _encode({"kind": "object-store", "store_id": self.store_id})

    @classmethod
    def parse(cls, data: bytes, *, key: str = "object-store.json") -> StoreIdentityObject:
        """Return what the object in ``data`` says. Raises ``CorruptObject``."""
        return cls(store_id=_text(_decode(data, key, "object-store"), key, "store_id"))


def log_start_object(log_start_offset: int) -> bytes:
    """Return the content of a log start object."""
    return _encode({"kind": "log-start", "log_start_offset": log_start_offset})


def deletion_object(topic: DeletedTopic) -> bytes:
    """Return the content of a topic's deletion object."""
    return _encode(
        {
            "kind": "topic-deletion",
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "deleted_ms": topic.deleted_ms,
        }
    )


def _encode(fields: Mapping[str, object]) -> bytes:
    text = json.dumps({"format_version": FORMAT_VERSION, **fields}, indent=2)
    return text.encode() + b"\n"


def _decode(data: bytes, key: str, kind: str) -> dict[str, object]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptObject(key, f"it is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise CorruptObject(key, f"it is not a {kind} manifest")
    if fields.get("format_version") != FORMAT_VERSION:
        raise CorruptObject(key, f"its format version is not {FORMAT_VERSION}")
    return fields


def _text(fields: Mapping[str, object], key: str, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise CorruptObject(key, f"{name} must be a string")
    return value


def _integer(fields: Mapping[str, object], key: str, name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptObject(key, f"{name} must be a whole number")
    return value


def _replication_factor(fields: Mapping[str, object], key: str) -> int | None:
    name = "replication_factor"
    factor = _integer(fields, key, name) if name in fields else None
    if factor is not None and factor < 1:
        raise CorruptObject(key, f"{name} must be at least 1")
    return factor
