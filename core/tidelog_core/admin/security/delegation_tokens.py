"""Creates, renews, expires, finds and removes delegation tokens.

Rights are the caller's affair, except that only the owner and renewers of a token may change it.
Source: KIP-48, KIP-373; Kafka's ``DelegationTokenControlManager`` with its order of checks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from tidelog_core.admin.batch_changes import commit_together
from tidelog_core.admin.security.scram_users import ensure_decoy_secret
from tidelog_core.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
    InvalidRequest,
    PolicyViolation,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.security.delegation_tokens import DelegationToken, delegation_token_key
from tidelog_core.metadata.store import Item, MetadataStore, Write
from tidelog_core.metadata.update import update
from tidelog_core.security.delegation_tokens import (
    TokenSecret,
    new_token_id,
    token_credentials,
    token_digest,
)
from tidelog_core.turns import Turn

TOKENS_MAX = 10_000  # of a cluster: every node has all of them in memory
TOKENS_OF_REQUESTER_MAX = 1_000
RENEWERS_MAX = 100
NAMES_SIZE_BYTES_MAX = 8_192  # of a token's users and groups together
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The lifetimes of tokens, in milliseconds."""

    lifetime_max_ms: int  # ``delegation.token.max.lifetime.ms``
    expiry_ms: int  # ``delegation.token.expiry.time.ms``: until a token must be renewed


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A wish for a token. All names are those of users."""

    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()  # of the owner
    lifetime_ms: int = -1  # not positive: the longest


class DelegationTokenAdmin:
    """Changes tokens. For the tasks of one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        view: ClusterView,
        *,
        secret: TokenSecret | None,
        times: TokenTimes,
        clock_ms: Callable[[], int],
        may_expire: Callable[[], bool] = lambda: True,
    ) -> None:
        """The view shows tokens; without ``secret`` there are none. The clock is a wall clock.

        Nothing is removed because of its age while ``may_expire`` says that the clock may be wrong.
        """
        self._store = store
        self._view = view
        self._known_secret = secret
        self._times = times
        self._clock_ms = clock_ms
        self._may_expire = may_expire
        # Otherwise many requests at a time would exceed the number of tokens by their own number.
        self._creating = asyncio.Lock()

    async def create(self, request: TokenRequest) -> tuple[DelegationToken, bytes]:
        """Store a new token; return it with its HMAC. Durable on return.

        Raises ``DelegationTokenAuthDisabled``, ``InvalidRequest`` for too many or too long names,
        ``PolicyViolation`` if there are too many tokens, and the errors of the store.
        """
        secret = self._secret()
        _check_names(request)
        async with self._creating:
            image = await self._view.refresh()
            if _is_full(image, request.requester):
                await self.remove_expired()
                image = self._view.image
            _check_counts(image, request.requester)
            await ensure_decoy_secret(self._store, image)
            token_id = new_token_id()
            token_hmac = secret.hmac(token_id)
            now = self._clock_ms()
            lifetime_ms = self._times.lifetime_max_ms
            if request.lifetime_ms > 0:
                lifetime_ms = min(lifetime_ms, request.lifetime_ms)
            max_ms = min(now + lifetime_ms, TIME_MAX_MS)
            token = DelegationToken(
                token_id=token_id,
                owner=request.owner,
                requester=request.requester,
                renewers=request.renewers,
                groups=request.groups,
                issued_ms=now,
                expires_ms=min(now + self._times.expiry_ms, max_ms),
                max_ms=max_ms,
                digest=token_digest(token_hmac),
                credentials=await asyncio.to_thread(token_credentials, token_hmac),
            )
            await self._store.commit([put(token)])
            await self._show()
        return token, token_hmac

    async def renew(self, token_hmac: bytes, user: str, *, period_ms: int) -> int:
        """Renew a token for the period, at most until its end; return when it expires.

        A period that is not positive is the longest. Raises ``DelegationTokenAuthDisabled``,
        ``DelegationTokenNotFound``, ``DelegationTokenExpired``, ``DelegationTokenOwnerMismatch``,
        and the errors of the store.
        """
        longest_ms = self._times.expiry_ms
        renewed_ms = min(longest_ms, period_ms) if period_ms > 0 else longest_ms

        def decide(token: DelegationToken, now: int) -> tuple[int, Write]:
            _check_not_expired(token, now)
            _check_may_renew(token, user)
            expires_ms = min(token.max_ms, now + renewed_ms)
            return expires_ms, put(replace(token, expires_ms=expires_ms))

        return await self._change(token_hmac, decide)

    async def expire(self, token_hmac: bytes, user: str, *, period_ms: int) -> int:
        """Have a token expire after the period; return when. A negative period removes it now.

        Raises as ``renew`` does. An expired token can only be removed.
        """

        def decide(token: DelegationToken, now: int) -> tuple[int, Write]:
            _check_may_renew(token, user)
            if period_ms < 0:
                return now, delete(token)
            _check_not_expired(token, now)
            expires_ms = min(token.max_ms, now + period_ms)
            return expires_ms, put(replace(token, expires_ms=expires_ms))

        return await self._change(token_hmac, decide)

    async def describe(self, users: Collection[str] | None) -> list[tuple[DelegationToken, bytes]]:
        """Return the tokens of each user that owns, renews or made one, with their HMACs.

        ``None`` is for all tokens. Expired ones are shown until they are removed. Other tasks run
        in between. Raises ``DelegationTokenAuthDisabled``.
        """
        secret = self._secret()
        image = self._view.image
        with contextlib.suppress(StoreUnavailable):
            image = await self._view.refresh()
        found = []
        turn = Turn()
        for token in image.delegation_tokens.records.values():
            await turn.step()
            names = (token.owner, token.requester, *token.renewers)
            if users is not None and not any(name in users for name in names):
                continue
            token_hmac = secret.known_hmac(token.token_id, token.digest)
            if token_hmac is not None:
                found.append((token, token_hmac))
        return found

    async def remove_expired(self) -> int:
        """Remove the expired tokens; return their number. Raises the errors of the store.

        A token that another process has just renewed or removed is left to it.
        """
        if not self._may_expire():
            return 0
        now = self._clock_ms()
        expired: dict[str, DelegationToken] = {}
        turn = Turn()
        for token_id, token in self._view.image.delegation_tokens.records.items():
            await turn.step()
            if token.expires_ms < now:
                expired[token_id] = token
        if not expired:
            return 0
        failed = await commit_together(
            self._store,
            expired,
            lambda token: [delete(token)],
            write_count=lambda _: 1,
            is_late=lambda: False,
        )
        await self._show()
        for error in failed.values():
            if not isinstance(error, VersionConflict):
                raise error
        return len(expired) - len(failed)

    # -- inside --

    def _secret(self) -> TokenSecret:
        if self._known_secret is None:
            raise DelegationTokenAuthDisabled("there is no delegation.token.secret.key")
        return self._known_secret

    async def _change(
        self,
        token_hmac: bytes,
        decide: Callable[[DelegationToken, int], tuple[int, Write]],
    ) -> int:
        """Return the decided time, once the write is stored and shown."""
        secret, digest = self._secret(), token_digest(token_hmac)
        known = self._view.image.delegation_tokens.by_digest.get(digest)
        if known is None:
            image = await self._view.refresh()
            known = image.delegation_tokens.by_digest.get(digest)
        if known is None or secret.known_hmac(known.token_id, digest) is None:
            raise _not_found()

        def decide_item(item: Item | None) -> tuple[int, Write]:
            if item is None:
                raise _not_found()
            return decide(DelegationToken.from_item(item), self._clock_ms())

        changed = await update(self._store, delegation_token_key(known.token_id), decide_item)
        await self._show()
        return changed

    async def _show(self) -> None:
        """Have the image show the commit, unless the store is unavailable now."""
        with contextlib.suppress(StoreUnavailable):
            await self._view.refresh()


def _not_found() -> DelegationTokenNotFound:
    return DelegationTokenNotFound("there is no delegation token with this HMAC")


def _check_not_expired(token: DelegationToken, now: int) -> None:
    if token.expires_ms < now:
        raise DelegationTokenExpired(f"delegation token {token.token_id} has expired")


def _check_may_renew(token: DelegationToken, user: str) -> None:
    if not token.may_be_renewed_by(user):
        raise DelegationTokenOwnerMismatch(
            f"user {user} is neither the owner nor a renewer of delegation token {token.token_id}"
        )


def _check_names(wanted: TokenRequest) -> None:
    """Raise ``InvalidRequest`` for more or longer names than an item may have."""
    if len(wanted.renewers) > RENEWERS_MAX:
        raise InvalidRequest(
            f"{len(wanted.renewers)} renewers of a delegation token, allowed are {RENEWERS_MAX}"
        )
    names: Iterable[str] = (wanted.owner, wanted.requester, *wanted.renewers, *wanted.groups)
    size_bytes = sum(len(name.encode()) for name in names)
    if size_bytes > NAMES_SIZE_BYTES_MAX:
        raise InvalidRequest(
            f"the users and groups of a delegation token have names of {size_bytes} bytes together,"
            f" allowed are {NAMES_SIZE_BYTES_MAX}"
        )


def _is_full(image: ClusterImage, requester: str) -> bool:
    tokens = image.delegation_tokens
    made_count = tokens.count_by_requester.get(requester, 0)
    return len(tokens.records) >= TOKENS_MAX or made_count >= TOKENS_OF_REQUESTER_MAX


def _check_counts(image: ClusterImage, requester: str) -> None:
    if _is_full(image, requester):
        raise PolicyViolation(
            f"there are {len(image.delegation_tokens.records)} delegation tokens, allowed are"
            f" {TOKENS_MAX}, and {TOKENS_OF_REQUESTER_MAX} made by one user: expire some"
        )
