"""The records of ACLs, and all of them in an image.

One item for each ACL. Its key is a digest of the whole ACL, so an ACL cannot be stored twice and an
item never changes: the last readable value of a damaged one is its value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, TypeVar

from tidelog_core.metadata.fields import Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.security.acl import (
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.acl_set import AclSet
from tidelog_core.turns import Steps, at_once

E = TypeVar("E", bound=IntEnum)

ACL_COLLECTION = "acl"
_TEXTS = ("name", "principal", "host")  # fields


@key_form
def acl_key(acl_id: str) -> ItemKey:
    """Return the key of the ACL with this digest."""
    return ItemKey(ACL_COLLECTION, f"{acl_id}")


def acl_id(acl: Acl) -> str:
    """Return the digest of an ACL: SHA-256 of its stored form, in hexadecimal digits."""
    text = json.dumps(_body(acl), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _body(acl: Acl) -> dict[str, JsonValue]:
    return {
        name: value.name if isinstance(value, IntEnum) else value
        for name, value in acl._asdict().items()
    }


def _read_acl(value: Any, before: Mapping[str, Any]) -> Acl:
    """Return a stored ACL. Raises ``ValueError``."""
    if not isinstance(value, Mapping) or value.keys() != set(Acl._fields):
        raise ValueError(f"it does not have the fields {', '.join(Acl._fields)}")
    if not all(isinstance(value[name], str) and value[name] for name in _TEXTS):
        raise ValueError(f"{', '.join(_TEXTS)} must be texts")
    acl = Acl(
        resource_type=_read_enum(ResourceType, value["resource_type"]),
        pattern_type=_read_enum(PatternType, value["pattern_type"]),
        name=value["name"],
        principal=value["principal"],
        host=value["host"],
        operation=_read_enum(AclOperation, value["operation"]),
        permission=_read_enum(AclPermission, value["permission"]),
    )
    if acl.pattern_type is PatternType.MATCH:
        raise ValueError("a stored pattern is LITERAL or PREFIXED")
    if acl_id(acl) != before["acl_id"]:
        raise ValueError("it is not the ACL of its key")
    return acl


def _read_enum(kind: type[E], name: object) -> E:
    if name == "ANY" or name not in kind.__members__:
        raise ValueError(f"{name!r} is not a {kind.__name__} that can be stored")
    return kind[str(name)]


def _write_acl(record: StoredAcl) -> JsonValue:
    return _body(record.acl)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAcl(Record):
    """One ACL. ``stored_acl`` makes it."""

    KEY = acl_key

    acl_id: str
    acl: Annotated[Acl, Stored(_read_acl, _write_acl)]


def stored_acl(acl: Acl) -> StoredAcl:
    """Return the record of an ACL that is not stored yet."""
    return StoredAcl(acl_id=acl_id(acl), acl=acl)


@dataclass(frozen=True)
class Acls:
    """All ACLs of an image. Never changed."""

    records: Mapping[str, StoredAcl] = field(default_factory=dict)  # by ``acl_id``
    index: AclSet = field(default_factory=AclSet)
    # The ``acl_id`` of each that has never been readable. It may deny anything.
    unknown: frozenset[str] = frozenset()

    def with_changes(
        self, changed: Mapping[str, StoredAcl | None], *, unknown: Set[str] = frozenset()
    ) -> Acls:
        """Return it with these records by their ``acl_id``.

        ``None`` is for one that is removed, or not readable and so among the ``unknown``.
        """
        return at_once(self.changing(changed, unknown=unknown))

    def changing(
        self, changed: Mapping[str, StoredAcl | None], *, unknown: Set[str] = frozenset()
    ) -> Steps[Acls]:
        """Return it with these records, as ``with_changes`` does, in steps."""
        records = dict(self.records)
        added: list[Acl] = []
        removed: list[Acl] = []
        for key, record in changed.items():
            yield
            before = records.pop(key, None)
            if record is not None:
                records[key] = record
                added.append(record.acl)
            elif before is not None:
                removed.append(before.acl)
        index = yield from self.index.changing(added, removed)
        return Acls(records, index, (self.unknown - changed.keys()) | unknown)
