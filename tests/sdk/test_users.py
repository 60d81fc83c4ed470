"""Admin calls for users, against a real node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog import Admin, UserDescription
from tidelog.errors import ResourceNotFound, UnacceptableCredential, UnsupportedSaslMechanism
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.security.scram_users import ScramUsers, scram_credential_key
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.security.plain import PlainLogin, check_password
from tidelog_core.security.scram import ScramServer
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism

from tests.support.node_process import NodeProcess
from tests.support.stored_items import overwrite_body

SHA_256, SHA_512 = (mechanism.value for mechanism in ScramMechanism)


async def stored_users(node: NodeProcess) -> ScramUsers:
    """Return what a node starting now would know."""
    store = SqliteMetadataStore(node.data_dir / "metadata.db")
    try:
        return (await ClusterView(store, shows_security=True).refresh()).scram_users
    finally:
        await store.close()


async def test_users_are_created_described_changed_and_deleted(
    node: NodeProcess, name: str
) -> None:
    async with Admin(node.address) as admin:
        await admin.set_password(name, "secret")
        described = UserDescription(name, {SHA_256: 4096, SHA_512: 4096})
        assert await admin.describe_users([name, name]) == {name: described}
        assert (await admin.describe_users())[name] == described
        assert await admin.describe_users([]) == {}
        await admin.set_password(name, "new", mechanisms=[SHA_512], iterations=8192)
        users = await stored_users(node)
        for mechanism, password in zip(ScramMechanism, ("secret", "new"), strict=True):
            check_password(PlainLogin(name, password), users)
            server = ScramServer(mechanism, users, nonce="server")
            client = ScramClient(mechanism, name, password, nonce="client")
            client.check(server.answer(client.final_message(server.answer(client.first_message()))))
        await admin.delete_credentials(name, [SHA_256])
        assert (await admin.describe_users([name]))[name].iterations == {SHA_512: 8192}
        await admin.delete_credentials(name)
        with pytest.raises(ResourceNotFound, match=name):
            await admin.describe_users([name])
        with pytest.raises(ResourceNotFound, match=name):
            await admin.delete_credentials(name)
        with pytest.raises(ResourceNotFound, match=name):
            await admin.delete_credentials(name, [SHA_256])


async def test_salt_is_another_with_every_password(node: NodeProcess, name: str) -> None:
    async with Admin(node.address) as admin:
        salts = set()
        for _ in range(2):
            await admin.set_password(name, "secret")
            records = (await stored_users(node)).by_user[name]
            salts |= {record.credential.salt for record in records}
        assert len(salts) == 4


async def test_what_no_client_could_use_is_refused_before_it_is_sent(
    node: NodeProcess, name: str
) -> None:
    async with Admin(node.address) as admin:
        for user, password, iterations in (
            ("Zoë", "secret", 4096),
            ("", "secret", 4096),
            (name, "", 4096),
            (name, "secret", 4095),
            (name, "secret", 16_385),
        ):
            with pytest.raises(UnacceptableCredential):
                await admin.set_password(user, password, iterations=iterations)
        with pytest.raises(UnsupportedSaslMechanism, match="SCRAM-SHA-256, SCRAM-SHA-512"):
            await admin.set_password(name, "secret", mechanisms=["SCRAM-SHA-1"])
        assert name not in await admin.describe_users()


async def test_unreadable_user_hides_no_other_and_can_be_given_a_password(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as node:
        async with Admin(node.address) as admin:
            for user in ("alice", "bob"):
                await admin.set_password(user, "secret", mechanisms=[SHA_256])
            node.stop()
            key = scram_credential_key("alice", ScramMechanism.SCRAM_SHA_256)
            overwrite_body(node.data_dir / "metadata.db", key)
            node.start()
            users = await admin.describe_users()
            assert "alice" in str(users["alice"].problem)
            assert (users["bob"].iterations, users["bob"].problem) == ({SHA_256: 4096}, None)
            await admin.set_password("alice", "new", mechanisms=[SHA_256])
            assert (await admin.describe_users())["alice"].problem is None
        check_password(PlainLogin("alice", "new"), await stored_users(node))
