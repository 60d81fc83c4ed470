"""The users, tokens, ACLs, roles and quotas of an image, advanced by the items that have changed.

There may be a hundred thousand ACLs, so other tasks run in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog_core.metadata.acls import ACL_COLLECTION, Acls, StoredAcl
from tidelog_core.metadata.client_quotas import QUOTA_COLLECTION, EntityQuotas, QuotaRecords
from tidelog_core.metadata.delegation_tokens import (
    DELEGATION_TOKEN_COLLECTION,
    DelegationToken,
    DelegationTokens,
)
from tidelog_core.metadata.readings import Readings
from tidelog_core.metadata.roles import ROLE_COLLECTION, Role, Roles
from tidelog_core.metadata.scram_users import (
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
    scram: dict[ItemKey, UserScramCredential | ScramDecoySecret | None] = {}
    tokens: dict[str, DelegationToken | None] = {}
    acls: dict[str, StoredAcl | None] = {}
    roles: dict[str, Role | None] = {}
    quotas: dict[str, EntityQuotas | None] = {}
    turn = Turn()
    for key, item in changed.items():
        await turn.step()
        if key.collection == ACL_COLLECTION:
            last_acl = before.acls.records.get(key.key)
            acls[key.key] = readings.record(key, item, StoredAcl.from_item, last_acl)
        elif key.collection == ROLE_COLLECTION:
            last_role = before.roles.records.get(key.key)
            roles[key.key] = readings.record(key, item, Role.from_item, last_role)
        elif key.collection == QUOTA_COLLECTION:
            last_quotas = before.quotas.records.get(key.key)
            quotas[key.key] = readings.record(key, item, EntityQuotas.from_item, last_quotas)
        elif key.collection == SCRAM_CREDENTIAL_COLLECTION:
            # Not the last readable one: the password may have been changed since.
            scram[key] = readings.record(key, item, UserScramCredential.from_item, None)
        elif key.collection == DELEGATION_TOKEN_COLLECTION:
            tokens[key.key] = readings.record(key, item, DelegationToken.from_item, None)
        elif key == decoy_secret_key():
            secret = before.scram_users.decoy_secret
            scram[key] = readings.record(key, item, ScramDecoySecret.from_item, secret)
        else:
            readings.note_key(key, item)
    known = _with_logins(known, scram, tokens)
    if quotas:
        known = known._replace(quotas=known.quotas.with_changes(quotas))
    if roles:
        unknown = _unknown(ROLE_COLLECTION, roles, readings)
        changing_roles = known.roles.changing(roles, unknown=unknown)
        known = known._replace(roles=await in_turns(changing_roles, turn))
    if acls:
        # With the last readable value an ACL still counts: its item never changes.
        unknown = _unknown(ACL_COLLECTION, acls, readings)
        changing = known.acls.changing(acls, unknown=unknown)
        known = known._replace(acls=await in_turns(changing, turn))
    return known


def _with_logins(
    known: SecurityRecords,
    scram: Mapping[ItemKey, UserScramCredential | ScramDecoySecret | None],
    tokens: Mapping[str, DelegationToken | None],
) -> SecurityRecords:
    """Return the records with the changes of users and delegation tokens."""
    if scram:
        known = known._replace(scram_users=known.scram_users.with_changes(scram))
    if tokens:
        known = known._replace(delegation_tokens=known.delegation_tokens.with_changes(tokens))
    return known


def _unknown(collection: str, changed: Mapping[str, object | None], readings: Readings) -> set[str]:
    """Return the keys of the items that are not readable and never were."""
    return {
        key
        for key, record in changed.items()
        if record is None and ItemKey(collection, key) in readings.unreadable
    }
