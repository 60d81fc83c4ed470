"""Describes, creates, changes and deletes users' SCRAM credentials.

The administrator's program salts the password. The node derives the stored keys from that, and
stores these alone. Source: KIP-554, Kafka's ``ScramControlManager`` with its codes and messages.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog_core.admin.batch_changes import commit_each
from tidelog_core.errors import (
    CorruptItem,
    DuplicateResource,
    ResourceNotFound,
    TidelogError,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    VersionConflict,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.security.scram_users import (
    SCRAM_CREDENTIAL_COLLECTION,
    ScramDecoySecret,
    UserScramCredential,
    decoy_secret_key,
    scram_credential_key,
)
from tidelog_core.metadata.store import ABSENT, ANY_VERSION, ItemKey, MetadataStore, Write
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISMS_BY_NUMBER,
    SALT_SIZE_BYTES_MAX,
    credential_from,
)
from tidelog_core.security.scram_decoys import SECRET_SIZE_BYTES
from tidelog_core.turns import Turn

USER_NAME_SIZE_BYTES_MAX = 512  # a name is in a key, and those of DynamoDB have 1,024


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """A credential to delete."""

    user: str
    mechanism_number: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A credential to create or to replace."""

    user: str
    mechanism_number: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


Alteration = ScramDeletion | ScramUpsertion


async def describe_users(
    image: ClusterImage, users: Sequence[str]
) -> dict[str, Sequence[UserScramCredential] | TidelogError]:
    """Return the credentials of each user; of all users if none is named.

    Other tasks run in between. Errors are ``ResourceNotFound``, ``DuplicateResource``, and
    ``CorruptItem`` for a user with a credential that cannot be read. Source: Kafka's
    ``ScramImage``.
    """
    by_user = image.scram_users.by_user
    damaged = {
        key.key.rpartition("/")[0]: key
        for key in image.unreadable
        if key.collection == SCRAM_CREDENTIAL_COLLECTION
    }
    described: dict[str, Sequence[UserScramCredential] | TidelogError] = {}
    turn = Turn()
    for user, count in Counter(users or sorted({*by_user, *damaged})).items():
        await turn.step()
        if count > 1:
            described[user] = DuplicateResource(
                "Cannot describe SCRAM credentials for the same user twice in a single request:"
                f" {user}"
            )
        elif user in damaged:
            key = damaged[user]
            described[user] = CorruptItem((key.collection, key.key), image.unreadable[key])
        elif user in by_user:
            described[user] = by_user[user]
        else:
            described[user] = ResourceNotFound(
                f"Attempt to describe a user credential that does not exist: {user}"
            )
    return described


class ScramUserAdmin:
    """Alters credentials. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, view: ClusterView) -> None:
        """The view shows credentials."""
        self._store = store
        self._view = view

    async def alter(
        self, deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion]
    ) -> dict[str, TidelogError | None]:
        """Make the alterations; return the error of each user, ``None`` for one that was altered.

        Each user is altered or refused independently of the others. A user may be in one
        alteration only. On return the view's image shows the stored state.
        """
        alterations: list[Alteration] = [*deletions, *upsertions]
        try:
            image = await self._view.refresh()
            if upsertions:
                await ensure_decoy_secret(self._store, image)
        except TidelogError as error:
            return dict.fromkeys((one.user for one in alterations), error)
        wanted, refused = await _checked(image, alterations)
        done = await commit_each(self._store, self._view, wanted, _decide)
        return {**done, **refused}


async def ensure_decoy_secret(store: MetadataStore, image: ClusterImage) -> None:
    """Store the secret of decoys with the first credential. Raises ``StoreUnavailable``."""
    is_there = image.scram_users.decoy_secret is not None
    if not is_there and decoy_secret_key() not in image.unreadable:
        with contextlib.suppress(VersionConflict):  # Another node has stored one.
            secret = secrets.token_bytes(SECRET_SIZE_BYTES)
            await store.commit([put(ScramDecoySecret(secret=secret))])


async def _checked(
    image: ClusterImage, alterations: Sequence[Alteration]
) -> tuple[dict[str, Alteration], dict[str, TidelogError]]:
    """Return the alteration of each user, and the first error of each that is refused."""
    wanted: dict[str, Alteration] = {}
    refused: dict[str, TidelogError] = {}
    turn = Turn()
    for one in alterations:
        await turn.step()
        if one.user in refused:
            continue
        try:
            if wanted.pop(one.user, None) is not None:
                raise DuplicateResource(
                    "A user credential cannot be altered twice in the same request"
                )
            _check(image, one)
        except TidelogError as error:
            refused[one.user] = error.with_traceback(None)  # a traceback holds the request
        else:
            wanted[one.user] = one
    return wanted, refused


def _check(image: ClusterImage, one: Alteration) -> None:
    """Raise a ``TidelogError`` if the alteration is not allowed."""
    if not one.user:
        raise UnacceptableCredential("Username must not be empty")
    if len(one.user.encode()) > USER_NAME_SIZE_BYTES_MAX:
        raise UnacceptableCredential(
            f"Username must not have more than {USER_NAME_SIZE_BYTES_MAX} bytes"
        )
    mechanism = MECHANISMS_BY_NUMBER.get(one.mechanism_number)
    if mechanism is None:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if isinstance(one, ScramDeletion):
        if _stored_version(image, scram_credential_key(one.user, mechanism)) == ABSENT:
            raise ResourceNotFound("Attempt to delete a user credential that does not exist")
        return
    if one.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential("Too few iterations")
    if one.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential("Too many iterations")
    if len(one.salt) > SALT_SIZE_BYTES_MAX:
        raise UnacceptableCredential(f"Salt must not have more than {SALT_SIZE_BYTES_MAX} bytes")
    if not one.salted_password:
        raise UnacceptableCredential("Salted password must not be empty")


def _decide(image: ClusterImage, one: Alteration) -> list[Write]:
    """Return the write that makes the alteration. Raises ``ResourceNotFound``."""
    _check(image, one)
    mechanism = MECHANISMS_BY_NUMBER[one.mechanism_number]
    key = scram_credential_key(one.user, mechanism)
    version = _stored_version(image, key)
    if isinstance(one, ScramDeletion):
        return [Write(key, None, version)]
    credential = credential_from(
        mechanism, one.salted_password, salt=one.salt, iterations=one.iterations
    )
    record = UserScramCredential(
        user=one.user, mechanism=mechanism, credential=credential, version=version
    )
    return [put(record)]


def _stored_version(image: ClusterImage, key: ItemKey) -> int:
    """Return the version that a write expects: any of an item that cannot be read."""
    if key in image.unreadable:
        return ANY_VERSION
    record = image.scram_users.records.get(key.key)
    return ABSENT if record is None else record.version
