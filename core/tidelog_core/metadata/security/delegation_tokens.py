"""The records of delegation tokens, and their look-up in an image.

One item for each token, in a collection of its own, so that a policy can deny it to a role as it
does users' credentials. An item has no HMAC: nodes derive it from ``delegation.token.secret.key``.

An unreadable token is none: the last readable value may have been renewed or expired since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from tidelog_core.metadata.fields import Natural, Stored
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.security.scram_users import credential_body, read_credential
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.security.delegation_tokens import DIGEST_SIZE_BYTES
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism

DELEGATION_TOKEN_COLLECTION = "delegation-token"


@key_form
def delegation_token_key(token_id: str) -> ItemKey:
    """Return the key of a token."""
    return ItemKey(DELEGATION_TOKEN_COLLECTION, f"{token_id}")


def _read_digest(value: Any, _: Mapping[str, Any]) -> bytes:
    digest = bytes.fromhex(value)
    if len(digest) != DIGEST_SIZE_BYTES:
        raise ValueError(f"it does not have {DIGEST_SIZE_BYTES} bytes")
    return digest


def _write_digest(record: DelegationToken) -> JsonValue:
    return record.digest.hex()


def _read_credentials(value: Any, _: Mapping[str, Any]) -> Mapping[ScramMechanism, ScramCredential]:
    """Return the credentials. Raises ``ValueError``, which does not repeat the value."""
    if not isinstance(value, Mapping) or value.keys() != set(ScramMechanism):
        raise ValueError("it does not have a credential for each mechanism")
    return {one: read_credential(value[one], one) for one in ScramMechanism}


def _write_credentials(record: DelegationToken) -> JsonValue:
    return {one.value: credential_body(record.credentials[one]) for one in ScramMechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken(Record):
    """A token. All names are those of users; times are epoch milliseconds."""

    KEY = delegation_token_key

    token_id: str
    owner: str  # whom a client with the token is
    requester: str  # who made it
    renewers: tuple[str, ...]
    # The owner's groups when the token was made. Empty if another user made it.
    groups: tuple[str, ...]
    issued_ms: Natural
    expires_ms: Natural  # until it is renewed
    max_ms: Natural  # it cannot be renewed beyond
    digest: Annotated[bytes, Stored(_read_digest, _write_digest)] = field(repr=False)  # of its HMAC
    credentials: Annotated[
        Mapping[ScramMechanism, ScramCredential], Stored(_read_credentials, _write_credentials)
    ] = field(repr=False)

    def may_be_renewed_by(self, user: str) -> bool:
        """Return whether the user may change when the token expires."""
        return user == self.owner or user in self.renewers

    def is_of(self, user: str) -> bool:
        """Return whether the user may see the token without a right to."""
        return user == self.requester or self.may_be_renewed_by(user)


@dataclass(frozen=True)
class DelegationTokens:
    """All tokens of an image, expired ones too until they are removed. Never changed."""

    records: Mapping[str, DelegationToken] = field(default_factory=dict)  # by ``token_id``

    @cached_property
    def by_digest(self) -> Mapping[bytes, DelegationToken]:
        """The tokens by the digests of their HMACs."""
        return {record.digest: record for record in self.records.values()}

    @cached_property
    def count_by_requester(self) -> Mapping[str, int]:
        """The number of tokens that each user has made."""
        return Counter(record.requester for record in self.records.values())

    def with_changes(self, changed: Mapping[str, DelegationToken | None]) -> DelegationTokens:
        """Return it with these records; ``None`` for one that is not there or unreadable."""
        records = dict(self.records)
        for token_id, record in changed.items():
            records.pop(token_id, None)
            if record is not None:
                records[token_id] = record
        return DelegationTokens(records)
