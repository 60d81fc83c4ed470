"""Who a client is at a TLS listener: the user that its certificate names."""

from __future__ import annotations

import pytest
from tidelog_core.config import ListenerConfig

from tests.node.security.tls_server import ask, tls_server
from tests.support.certificates import Authority

RULES = r"RULE:^CN=([^,]+),OU=team,.*$/$1/U"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def config(authority: Authority, client_auth: str, rules: str = "DEFAULT") -> ListenerConfig:
    return ListenerConfig(
        ssl_keystore_location=str(authority.node_pem()),
        ssl_truststore_location=str(authority.trusted),
        ssl_client_auth=client_auth,
        ssl_principal_mapping_rules=rules,
    )


async def test_the_user_is_the_distinguished_name(authority: Authority) -> None:
    context = authority.client_context(authority.client_pem("alice"))
    async with tls_server(config(authority, "required")) as (_, port):
        user = await ask(port, context)
        assert user.startswith("User:CN=alice,OU=team,O=trustme")


async def test_rules_make_the_user_of_the_name(authority: Authority) -> None:
    context = authority.client_context(authority.client_pem("alice"))
    async with tls_server(config(authority, "required", RULES)) as (_, port):
        assert await ask(port, context) == "User:ALICE"


async def test_a_name_without_a_rule_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.client_context(authority.client_pem("alice"))
    async with tls_server(config(authority, "required", "RULE:^CN=bob.*$/bob/")) as (_, port):
        with pytest.raises(ConnectionError):
            await ask(port, context)
    (record,) = [one for one in caplog.records if one.message == "client refused"]
    assert "no rule of ssl.principal.mapping.rules applies to CN=alice" in record.reason


async def test_a_certificate_is_not_looked_at_unless_it_is_asked_for(authority: Authority) -> None:
    context = authority.client_context(authority.client_pem("alice"))
    async with tls_server(config(authority, "none")) as (_, port):
        assert await ask(port, context) == "User:ANONYMOUS"


async def test_requested_certificates_are_checked_and_may_be_missing(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alice = authority.client_context(authority.client_pem("alice"))
    stranger = Authority(tmp_path_factory.mktemp("other")).client_pem("alice")
    async with tls_server(config(authority, "requested", RULES)) as (_, port):
        assert await ask(port, alice) == "User:ALICE"
        assert await ask(port, authority.client_context()) == "User:ANONYMOUS"
        with pytest.raises(ConnectionError):
            await ask(port, authority.client_context(stranger))
