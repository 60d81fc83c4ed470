"""The records of roles, and all of them in an image: one item for each role."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Annotated, Any

from tidelog_core.errors import InvalidRequest
from tidelog_core.metadata.fields import Checked, Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.security.roles import RoleSet, check_members, check_role_name
from tidelog_core.turns import Steps, at_once

ROLE_COLLECTION = "role"


@key_form
def role_key(name: str) -> ItemKey:
    """Return the key of a role."""
    return ItemKey(ROLE_COLLECTION, f"{name}")


def _check_name(name: str) -> None:
    """Raise ``ValueError`` for a name that no role can have."""
    try:
        check_role_name(name)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def _read_members(value: Any, before: Mapping[str, Any]) -> tuple[str, ...]:
    """Return stored members. Raises ``ValueError``."""
    del before
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("its members are not a list of principals")
    try:
        check_members(value)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return tuple(value)


def _write_members(record: Role) -> JsonValue:
    return list(record.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Record):
    """The members of one role in their order, each once: principals such as ``User:alice``."""

    KEY = role_key

    name: Annotated[str, Checked(_check_name)]
    members: Annotated[tuple[str, ...], Stored(_read_members, _write_members)]


@dataclass(frozen=True)
class Roles:
    """All roles of an image. Never changed."""

    records: Mapping[str, Role] = field(default_factory=dict)  # by name
    index: RoleSet = field(default_factory=RoleSet)
    # The name of each whose item has never been readable. Its members may be denied anything.
    unknown: frozenset[str] = frozenset()

    def with_changes(
        self, changed: Mapping[str, Role | None], *, unknown: Set[str] = frozenset()
    ) -> Roles:
        """Return it with these records by their names.

        ``None`` is for one that is removed, or not readable and so among the ``unknown``.
        """
        return at_once(self.changing(changed, unknown=unknown))

    def changing(
        self, changed: Mapping[str, Role | None], *, unknown: Set[str] = frozenset()
    ) -> Steps[Roles]:
        """Return it with these records, as ``with_changes`` does, in steps."""
        records = dict(self.records)
        for name, record in changed.items():
            if record is None:
                records.pop(name, None)
            else:
                records[name] = record
        index = yield from self.index.changing(
            {name: None if one is None else one.members for name, one in changed.items()}
        )
        return Roles(records, index, (self.unknown - changed.keys()) | unknown)
