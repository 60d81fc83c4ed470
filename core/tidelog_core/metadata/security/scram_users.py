"""The records of users' SCRAM credentials, and their look-up in an image.

One item for each user and mechanism, and one for the secret from which decoys are made. Only their
collections begin with ``scram-``. A collection is the partition key in DynamoDB, so a policy can
deny them to a role by ``dynamodb:LeadingKeys``. Only a view that was asked to shows them
(``ClusterView``): nodes' views are, those of functions and of operators' programs are not.

Unreadable credentials allow no log-in: the last readable value may be of an old password.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from tidelog_core.metadata.fields import Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_SIZE_BYTES_MAX,
    ScramCredential,
    ScramMechanism,
)
from tidelog_core.security.scram_decoys import SECRET_SIZE_BYTES, Decoys

SCRAM_CREDENTIAL_COLLECTION = "scram-credential"
SCRAM_DECOYS_COLLECTION = "scram-decoys"
SCRAM_COLLECTIONS = (SCRAM_CREDENTIAL_COLLECTION, SCRAM_DECOYS_COLLECTION)


@key_form
def scram_credential_key(user: str, mechanism: ScramMechanism) -> ItemKey:
    """Return the key of a user's credential for a mechanism."""
    return ItemKey(SCRAM_CREDENTIAL_COLLECTION, f"{user}/{mechanism}")


def read_credential(value: Any, mechanism: ScramMechanism) -> ScramCredential:
    """Return a stored credential. Raises ``ValueError``, which does not repeat the value."""
    names = {"salt", "stored_key", "server_key", "iterations"}
    if not isinstance(value, Mapping) or value.keys() != names:
        raise ValueError(f"it does not have the fields {', '.join(sorted(names))}")
    keys = {name: _bytes(name, value[name]) for name in names - {"iterations"}}
    if len(keys["salt"]) > SALT_SIZE_BYTES_MAX:
        raise ValueError("the salt is too long")
    if not len(keys["stored_key"]) == len(keys["server_key"]) == mechanism.key_size_bytes:
        raise ValueError(f"the keys do not have the size of {mechanism}")
    iterations = value["iterations"]
    if type(iterations) is not int or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
    return ScramCredential(iterations=iterations, **keys)


def credential_body(credential: ScramCredential) -> JsonValue:
    """Return the stored form of a credential."""
    return {
        "salt": credential.salt.hex(),
        "stored_key": credential.stored_key.hex(),
        "server_key": credential.server_key.hex(),
        "iterations": credential.iterations,
    }


def _read_credential(value: Any, before: Mapping[str, Any]) -> ScramCredential:
    return read_credential(value, before["mechanism"])


def _write_credential(record: UserScramCredential) -> JsonValue:
    return credential_body(record.credential)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredential(Record):
    """The stored form of a user's password for one mechanism."""

    KEY = scram_credential_key

    user: str
    mechanism: ScramMechanism
    credential: Annotated[ScramCredential, Stored(_read_credential, _write_credential)]


@key_form
def decoy_secret_key() -> ItemKey:
    """Return the key of the secret of decoys."""
    return ItemKey(SCRAM_DECOYS_COLLECTION, SCRAM_DECOYS_COLLECTION)


def _read_secret(value: Any, _: Mapping[str, Any]) -> bytes:
    secret = _bytes("it", value)
    if len(secret) != SECRET_SIZE_BYTES:
        raise ValueError(f"it does not have {SECRET_SIZE_BYTES} bytes")
    return secret


def _write_secret(record: ScramDecoySecret) -> JsonValue:
    return record.secret.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDecoySecret(Record):
    """The secret from which nodes derive the decoys of users that do not exist. Written once."""

    KEY = decoy_secret_key

    secret: Annotated[bytes, Stored(_read_secret, _write_secret)] = field(repr=False)


def _bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise ValueError(f"{name} is not bytes in hexadecimal digits")


@dataclass(frozen=True)
class ScramUsers:
    """All users' credentials of an image. Never changed. ``ScramServer`` looks users up in it."""

    records: Mapping[str, UserScramCredential] = field(default_factory=dict)  # by the item's key
    decoy_secret: ScramDecoySecret | None = None  # None: no credential was ever stored

    def find(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
    ) -> ScramCredential | None:
        """Return the user's credential. Delegation tokens are not among the users."""
        record = self.records.get(scram_credential_key(name, mechanism).key)
        return None if record is None or is_token else record.credential

    def decoy(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool = False
    ) -> ScramCredential:
        """Return a credential that no password fits, in a form that users or tokens have."""
        decoys = self._token_decoys if is_token else self._decoys
        return decoys.credential(name, mechanism)

    @cached_property
    def by_user(self) -> Mapping[str, Sequence[UserScramCredential]]:
        """The credentials of each user, in the order of their mechanisms' numbers."""
        found: defaultdict[str, list[UserScramCredential]] = defaultdict(list)
        for record in sorted(self.records.values(), key=lambda one: one.mechanism.number):
            found[record.user].append(record)
        return dict(sorted(found.items()))

    def with_changes(
        self, changed: Mapping[ItemKey, UserScramCredential | ScramDecoySecret | None]
    ) -> ScramUsers:
        """Return it with these records; ``None`` for one that is not there or unreadable."""
        records, secret = dict(self.records), self.decoy_secret
        for key, record in changed.items():
            if isinstance(record, UserScramCredential):
                records[key.key] = record
            elif key == decoy_secret_key():
                secret = record
            else:
                records.pop(key.key, None)
        return dataclasses.replace(self, records=records, decoy_secret=secret)

    @cached_property
    def _decoys(self) -> Decoys:
        by_mechanism: defaultdict[ScramMechanism, list[ScramCredential]] = defaultdict(list)
        for record in self.records.values():
            by_mechanism[record.mechanism].append(record.credential)
        return Decoys(self._secret, by_mechanism)

    @cached_property
    def _token_decoys(self) -> Decoys:
        return Decoys(self._secret, {})

    @property
    def _secret(self) -> bytes:
        # Without a secret there are no users or tokens which the decoys could hide.
        return b"" if self.decoy_secret is None else self.decoy_secret.secret
