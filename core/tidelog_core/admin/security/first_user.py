"""Stores the first user of a cluster that takes logins only, who can then add others."""

from __future__ import annotations

import secrets

from tidelog_core.admin.security.scram_users import ScramUpsertion, ScramUserAdmin
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.security.scram_credentials import (
    ITERATIONS_MIN,
    SALT_SIZE_BYTES,
    ScramMechanism,
    salt_password,
)

MECHANISM = ScramMechanism.SCRAM_SHA_512


async def ensure_first_user(
    store: MetadataStore, view: ClusterView, user: str, password: str
) -> bool:
    """Store the user's password unless there is such a user; return whether it was stored.

    Durable on return. ``view`` shows users and is up to date. Several nodes may call it at the same
    time with one password: each writes on condition of what it has read, so the last one finds
    the user, or stores keys of the same password. Raises the errors of ``ScramUserAdmin.alter``.
    """
    if user in view.image.scram_users.by_user:
        return False
    salt = secrets.token_bytes(SALT_SIZE_BYTES)
    upsertion = ScramUpsertion(
        user,
        MECHANISM.number,
        iterations=ITERATIONS_MIN,
        salt=salt,
        salted_password=salt_password(MECHANISM, password, salt=salt, iterations=ITERATIONS_MIN),
    )
    error: TidelogError | None = (await ScramUserAdmin(store, view).alter([], [upsertion]))[user]
    if error is not None:
        raise error
    return True
