"""The users, tokens, ACLs, roles and quotas of an image, advanced by the items that have changed.

There may be a hundred thousand ACLs, so other tasks run in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog_core.metadata.image.readings import Readings
from tidelog_core.metadata.security.acls import ACL_COLLECTION, Acls, StoredAcl
from tidelog_core.metadata.security.client_quotas import (
    QUOTA_COLLECTION,
    EntityQuotas,
    QuotaRecords,
)
from tidelog_core.metadata.security.delegation_tokens import (
    DELEGATION_TOKEN_COLLECTION,
    DelegationToken,
    DelegationTokens,
)
from tidelog_core.metadata.security.roles import ROLE_COLLECTION, Role, Roles
from tidelog_core.metadata.security.scram_users import (
    SCRAM_COLLECTIONS,
    SCRAM_CREDENTIAL_COLLECTION,
    ScramDecoySecret,
    ScramUsers,
    UserScramCredential,
    decoy_secret_key,
)
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.turns import Turn, in_turns

RIGHTS_COLLECTIONS = (ACL_COLLECTION, ROLE_COLLECTION)
SECURITY_COLLECTIONS = (
    *SCRAM_COLLECTIONS,
    DELEGATION_TOKEN_COLLECTION,
    *RIGHTS_COLLECTIONS,
    QUOTA_COLLECTION,
)


class SecurityRecords(NamedTuple):
    """The fields of an image that only nodes have."""

    scram_users: ScramUsers
    delegation_tokens: DelegationTokens
    acls: Acls
    roles: Roles
    quotas: QuotaRecords


async def merge_security(
    known: SecurityRecords,
    changed: Mapping[ItemKey, Item | None],
    before: SecurityRecords,
    readings: Readings,
) -> SecurityRecords:
    """Return the records with the changed items; ``before`` is used for damaged ones."""
    change = _SecurityChange(before, readings)
    turn = Turn()
    for key, item in changed.items():
        await turn.step()
        change.take(key, item)
    known = change.with_logins_and_quotas(known)
    if change.roles:
        unknown = _unknown(ROLE_COLLECTION, change.roles, readings)
        changing_roles = known.roles.changing(change.roles, unknown=unknown)
        known = known._replace(roles=await in_turns(changing_roles, turn))
    if change.acls:
        # With the last readable value an ACL still counts: its item never changes.
        unknown = _unknown(ACL_COLLECTION, change.acls, readings)
        changing = known.acls.changing(change.acls, unknown=unknown)
        known = known._replace(acls=await in_turns(changing, turn))
    return known


class _SecurityChange:
    """The changed records, sorted by kind; ``None`` for removed ones.

    ``before`` has the last readable value of an item that is damaged now.
    """

    def __init__(self, before: SecurityRecords, readings: Readings) -> None:
        self.acls: dict[str, StoredAcl | None] = {}
        self.roles: dict[str, Role | None] = {}
        self._quotas: dict[str, EntityQuotas | None] = {}
        self._scram: dict[ItemKey, UserScramCredential | ScramDecoySecret | None] = {}
        self._tokens: dict[str, DelegationToken | None] = {}
        self._before = before
        self._readings = readings

    def take(self, key: ItemKey, item: Item | None) -> None:
        """Take one changed item, ``None`` for a removed one."""
        name, read, before = key.key, self._readings.record, self._before
        if key.collection == ACL_COLLECTION:
            last_acl = before.acls.records.get(name)
            self.acls[name] = read(key, item, StoredAcl.from_item, last_acl)
        elif key.collection == ROLE_COLLECTION:
            self.roles[name] = read(key, item, Role.from_item, before.roles.records.get(name))
        elif key.collection == QUOTA_COLLECTION:
            last_quotas = before.quotas.records.get(name)
            self._quotas[name] = read(key, item, EntityQuotas.from_item, last_quotas)
        elif key.collection == SCRAM_CREDENTIAL_COLLECTION:
            # Not the last readable one: the password may have been changed since.
            self._scram[key] = read(key, item, UserScramCredential.from_item, None)
        elif key.collection == DELEGATION_TOKEN_COLLECTION:
            self._tokens[name] = read(key, item, DelegationToken.from_item, None)
        elif key == decoy_secret_key():
            secret = before.scram_users.decoy_secret
            self._scram[key] = read(key, item, ScramDecoySecret.from_item, secret)
        else:
            self._readings.note_key(key, item)

    def with_logins_and_quotas(self, known: SecurityRecords) -> SecurityRecords:
        """Return the records with the changes of users, delegation tokens and quotas."""
        if self._scram:
            known = known._replace(scram_users=known.scram_users.with_changes(self._scram))
        if self._tokens:
            tokens = known.delegation_tokens.with_changes(self._tokens)
            known = known._replace(delegation_tokens=tokens)
        if self._quotas:
            known = known._replace(quotas=known.quotas.with_changes(self._quotas))
        return known


def _unknown(collection: str, changed: Mapping[str, object | None], readings: Readings) -> set[str]:
    """Return the keys of the items that are not readable and never were."""
    return {
        key
        for key, record in changed.items()
        if record is None and ItemKey(collection, key) in readings.unreadable
    }
