"""Expired delegation tokens are removed by one broker; the secret key is read at the start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.admin.security.delegation_tokens import (
    DelegationTokenAdmin,
    TokenRequest,
    TokenTimes,
)
from tidelog_core.config import NodeConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, Cluster, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_node.authentication.token_expiry import TokenExpiry
from tidelog_node.security.token_secret import load_token_secret

from tests.support.clock import Clock
from tests.support.delegation_tokens import HOUR_MS, NOW_MS, SECRET
from tests.support.node_context import Alone, node_context


async def test_the_first_live_broker_removes_expired_tokens(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    endpoints = plaintext_endpoints("127.0.0.1", 1)
    broker = Broker(broker_id=1, incarnation=UUID(int=1), endpoints=endpoints, rack=None)
    await store.commit([put(Cluster(cluster_id="c")), put(broker)])
    view = ClusterView(store, shows_security=True)
    clock = Clock(NOW_MS)
    admin = DelegationTokenAdmin(
        store,
        view,
        secret=SECRET,
        times=TokenTimes(4 * HOUR_MS, HOUR_MS),
        clock_ms=clock,
    )
    await admin.create(TokenRequest("alice", "alice"))
    first = TokenExpiry(
        node_context(store, view, broker_id=1, membership=Alone(1)), admin, interval_seconds=1
    )
    # Broker 1 is live, so the second one leaves the tokens to it.
    second = TokenExpiry(
        node_context(store, view, broker_id=2, membership=Alone(1)), admin, interval_seconds=1
    )
    await first.remove_expired()
    assert len(await admin.describe(None)) == 1
    clock.now_ms += HOUR_MS + 1
    await second.remove_expired()
    assert len(await admin.describe(None)) == 1
    await first.remove_expired()
    assert await admin.describe(None) == []
    await store.close()


KEY = "canary-of-a-secret-key"


async def test_the_key_comes_from_a_setting_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {KEY}\n")
    with ThreadPoolExecutor(1) as executor:
        assert await load_token_secret(NodeConfig(), executor) is None
        by_setting = await load_token_secret(NodeConfig(delegation_token_secret_key=KEY), executor)
        by_file = await load_token_secret(
            NodeConfig(delegation_token_secret_key_location=str(file)), executor
        )
        assert by_setting is not None
        assert by_file is not None
        assert by_setting.hmac("id") == by_file.hmac("id")


async def test_a_key_that_cannot_be_used_ends_the_start_and_is_not_repeated(
    tmp_path: Path,
) -> None:
    empty, short = tmp_path / "empty", tmp_path / "short"
    empty.write_text("\n")
    short.write_text("canary")
    configs = (
        NodeConfig(delegation_token_secret_key_location=str(tmp_path / "nothing")),
        NodeConfig(delegation_token_secret_key_location=str(empty)),
        NodeConfig(delegation_token_secret_key_location=str(short)),
        NodeConfig(delegation_token_secret_key="canary"),
        NodeConfig(
            delegation_token_secret_key=KEY, delegation_token_secret_key_location=str(short)
        ),
    )
    with ThreadPoolExecutor(1) as executor:
        for config in configs:
            assert "canary" not in repr(config)
            with pytest.raises(InvalidConfig) as refused:
                await load_token_secret(config, executor)
            assert "canary" not in str(refused.value)
