"""The four APIs of delegation tokens, over the wire formats; ``tests/kafka`` compares."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.admin.security.acls import AclAdmin
from tidelog_core.admin.security.delegation_tokens import RENEWERS_MAX
from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode, StoreUnavailable
from tidelog_core.model import ANONYMOUS, Principal
from tidelog_core.security.acl import (
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.authorization import Authorizer
from tidelog_node.authorization.access import Access
from tidelog_node.authorization.denial_log import DenialLog
from tidelog_node.authorization.guarded_routes import guard_routes
from tidelog_node.requests.session import Session

from tests.node.handlers.control_plane import NOW_MS, Node, cluster
from tests.node.handlers.unsteady_store import one_node

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
WITH_TOKENS = NodeConfig(delegation_token_secret_key="a secret key for the tests")
NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed


def become(node: Node, principal: Principal, **how: Any) -> None:
    """Have the next requests be those of the principal."""
    node.session.become(principal, **how)


async def create(node: Node, *renewers: str, version: int = 3, **fields: Any) -> Any:
    named = [{"principal_type": "User", "principal_name": name} for name in renewers]
    return await node.ask(CREATE, version, **{"renewers": named, "max_lifetime": -1 * MS, **fields})


async def renew(node: Node, hmac: bytes, period_ms: int = -1) -> Any:
    return await node.ask(RENEW, 2, hmac=hmac, renew_period=period_ms * MS)


async def expire(node: Node, hmac: bytes, period_ms: int = -1) -> Any:
    return await node.ask(EXPIRE, 2, hmac=hmac, expiry_time_period=period_ms * MS)


async def described(node: Node, *owners: str) -> list[str]:
    """Return the ids of the tokens that are shown."""
    named = [{"principal_type": "User", "principal_name": name} for name in owners]
    answer = await node.ask(DESCRIBE, 3, owners=named or None)
    assert answer.error_code is ErrorCode.none
    return [token.token_id for token in answer.tokens]


@asynccontextmanager
async def tokens_node(path: Path, static: NodeConfig = WITH_TOKENS) -> AsyncIterator[Node]:
    async with cluster(path, static=static) as (node,):
        become(node, ALICE)
        yield node


async def test_a_token_comes_back_in_every_version(tmp_path: Path) -> None:
    async with tokens_node(tmp_path) as node:
        for version in (1, 2, 3):
            made = await create(node, "bob", "bob", version=version)
            assert made.error_code is ErrorCode.none
            assert (made.issue_timestamp - EPOCH) // MS == NOW_MS
            assert (made.principal_type, made.principal_name) == ("User", "alice")
            (token,) = (await node.ask(DESCRIBE, version, owners=None)).tokens
            assert (token.token_id, token.hmac) == (made.token_id, made.hmac)
            assert [one.principal_name for one in token.renewers] == ["bob"]
            for api_key, field in ((RENEW, "renew_period"), (EXPIRE, "expiry_time_period")):
                answer = await node.ask(
                    api_key, min(version, 2), hmac=made.hmac, **{field: 1000 * MS}
                )
                assert (answer.expiry_timestamp - EPOCH) // MS == NOW_MS + 1000
            assert (await expire(node, made.hmac)).error_code is ErrorCode.none
            assert await described(node) == []


@pytest.mark.parametrize(
    ("principal", "is_by_token"),
    [
        (ANONYMOUS, False),
        (ALICE, True),
        (Principal("Node", "1"), False),
        (Principal("User", "ANONYMOUS"), True),
    ],
)
async def test_nobody_else_may_ask(tmp_path: Path, principal: Principal, is_by_token: bool) -> None:
    async with tokens_node(tmp_path) as node:
        token = await create(node)
        become(node, principal, is_by_token=is_by_token)
        refused = await create(node)
        assert (refused.error_code, refused.hmac, refused.token_id) == (NOT_ALLOWED, b"", "")
        assert (await renew(node, token.hmac)).error_code is NOT_ALLOWED
        assert (await expire(node, token.hmac)).error_code is NOT_ALLOWED
        answer = await node.ask(DESCRIBE, 3, owners=None)
        assert (answer.error_code, answer.tokens) == (NOT_ALLOWED, ())


async def test_without_a_key_there_are_no_tokens(tmp_path: Path) -> None:
    async with tokens_node(tmp_path, NodeConfig()) as node:
        disabled = ErrorCode.delegation_token_auth_disabled
        assert (await create(node)).error_code is disabled
        assert (await renew(node, b"x")).error_code is disabled
        assert (await expire(node, b"x")).error_code is disabled
        assert (await node.ask(DESCRIBE, 3, owners=None)).error_code is disabled


async def test_only_users_own_and_renew_tokens(tmp_path: Path) -> None:
    """A client logs in as a user. Kafka lets a token for ``Group:admins`` log in as a user so."""
    async with tokens_node(tmp_path) as node:
        group = {"principal_type": "Group", "principal_name": "admins"}
        code = ErrorCode.invalid_principal_type
        assert (await create(node, renewers=[group])).error_code is code
        for kind in ("Group", "", None, "user"):
            owner = {"owner_principal_type": kind, "owner_principal_name": "admins"}
            assert (await create(node, **owner)).error_code is code
        assert await described(node) == []


async def test_a_token_has_the_groups_of_its_owners_session(tmp_path: Path) -> None:
    """One for another user has none: nobody knows them."""
    async with tokens_node(tmp_path) as node:
        become(node, ALICE, groups=("staff",))
        own = await create(node)
        other = await create(node, owner_principal_type="User", owner_principal_name="bob")
        records = node.view.image.delegation_tokens.records
        assert records[own.token_id].groups == ("staff",)
        assert records[other.token_id].groups == ()
        assert records[other.token_id].requester == "alice"


async def test_requests_about_thousands_of_users_are_bounded(tmp_path: Path) -> None:
    async with tokens_node(tmp_path) as node:
        names = [f"user-{number}" for number in range(3_000)]
        refused = await create(node, *names)
        assert refused.error_code is ErrorCode.invalid_request
        assert refused.hmac == b""
        made = await create(node, *names[:RENEWERS_MAX])
        assert made.error_code is ErrorCode.none
        assert await described(node, *names) == [made.token_id]
        assert await described(node, *names[RENEWERS_MAX:]) == []


async def test_a_store_that_is_away_is_reported(tmp_path: Path) -> None:
    store, node = await one_node(tmp_path, WITH_TOKENS)
    become(node, ALICE)
    made = await create(node)
    store.commit_failure, store.is_unreadable = StoreUnavailable("away"), True
    timed_out = ErrorCode.request_timed_out
    assert (await create(node)).error_code is timed_out
    assert (await renew(node, made.hmac)).error_code is timed_out
    assert (await expire(node, made.hmac)).error_code is timed_out
    assert await described(node) == [made.token_id], "the last ones that are known"
    await store.close()


# -- with an authorizer --


class Guarded:
    """A node's token APIs behind their guards."""

    def __init__(self, node: Node, *, is_dry_run: bool = False) -> None:
        self.node = node
        authorizer = Authorizer(frozenset({"User:root"}), allows_without_acls=False)
        denials = DenialLog(is_dry_run=is_dry_run)
        self.access = Access(authorizer, node.view, denials=denials)
        routes = [node.route(key, 2) for key in (CREATE, RENEW, EXPIRE, DESCRIBE)]
        for route in guard_routes(routes, self.access, node.view):
            for version in range(route.min_version, route.max_version + 1):
                node.replace(route, version)


def allow(operation: AclOperation, kind: ResourceType, name: str) -> Acl:
    return Acl(kind, PatternType.LITERAL, name, "User:alice", "*", operation, AclPermission.ALLOW)


async def grant(node: Node, *acls: Acl) -> None:
    assert await AclAdmin(node.store, node.view).create(acls) == [None] * len(acls)


async def test_tokens_of_others_need_rights(tmp_path: Path) -> None:
    async with tokens_node(tmp_path) as node:
        become(node, BOB)
        first, second = await create(node), await create(node)
        Guarded(node)
        become(node, ALICE)
        owner = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        denied = await create(node, **owner)
        assert denied.error_code is ErrorCode.delegation_token_authorization_failed
        assert (denied.principal_name, denied.hmac) == ("bob", b"")
        assert (await create(node)).error_code is ErrorCode.none, "for oneself"
        (own,) = await described(node)
        token = ResourceType.DELEGATION_TOKEN
        await grant(node, allow(AclOperation.DESCRIBE, token, first.token_id))
        assert set(await described(node)) == {own, first.token_id}
        assert await described(node, "bob") == [first.token_id]
        user = ResourceType.USER
        await grant(node, allow(AclOperation.DESCRIBE_TOKENS, user, "User:bob"))
        assert set(await described(node)) == {own, first.token_id, second.token_id}
        await grant(node, allow(AclOperation.CREATE_TOKENS, user, "User:bob"))
        made = await create(node, **owner)
        assert made.error_code is ErrorCode.none
        assert (await renew(node, made.hmac)).error_code is (
            ErrorCode.delegation_token_owner_mismatch
        )


async def test_rights_do_not_help_who_may_not_ask(tmp_path: Path) -> None:
    """A token cannot make tokens, whatever its owner may do."""
    async with tokens_node(tmp_path) as node:
        Guarded(node)
        become(node, Principal("User", "root"), is_by_token=True)
        owner = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        assert (await create(node, **owner)).error_code is NOT_ALLOWED
        assert (await node.ask(DESCRIBE, 3, owners=None)).error_code is NOT_ALLOWED


async def test_a_dry_run_denies_nothing(tmp_path: Path) -> None:
    async with tokens_node(tmp_path) as node:
        become(node, BOB)
        token = await create(node)
        Guarded(node, is_dry_run=True)
        become(node, ALICE)
        assert await described(node) == [token.token_id]
        owner = {"owner_principal_type": "User", "owner_principal_name": "bob"}
        assert (await create(node, **owner)).error_code is ErrorCode.none


def test_a_new_session_is_by_no_token() -> None:
    session = Session("127.0.0.1", 1, "CLIENTS")
    assert not session.is_by_token
    session.become(ALICE, is_by_token=True)
    session.become(ALICE)
    assert not session.is_by_token
