"""Requests about clients' quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.peer import Peer

EXACT, DEFAULT_NAME, ANY_NAME = 0, 1, 2  # match types

Op = dict[str, object]
Entry = tuple[Mapping[str, str | None], Sequence[Op]]


def op(key: str, value: float | None) -> Op:
    """Return the change of a quota; ``None`` removes it."""
    return {"key": key, "value": 0.0 if value is None else float(value), "remove": value is None}


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, object]:
    """Return a part of a filter."""
    return {"entity_type": kind, "match_type": match_type, "match": match}


def alter_quotas(peer: Peer, *entries: Entry, version: int = 1, validate_only: bool = False) -> Any:
    """Return the answer to AlterClientQuotas; an entry is an entity and its changes."""
    return peer.call(
        "alter_client_quotas",
        version,
        entries=[
            {
                "entity": [
                    {"entity_type": kind, "entity_name": name} for kind, name in entity.items()
                ],
                "ops": list(ops),
            }
            for entity, ops in entries
        ],
        validate_only=validate_only,
    )


def describe_quotas(
    peer: Peer, *components: Mapping[str, object], strict: bool = False, version: int = 1
) -> Any:
    """Return the answer to DescribeClientQuotas."""
    return peer.call("describe_client_quotas", version, components=list(components), strict=strict)
