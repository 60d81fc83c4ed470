"""Java's client and Kafka's tool at a node with delegation tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tidelog import Admin, DelegationToken, Sasl, SyncAdmin

from tests.support.drivers.lines import Message
from tests.support.drivers.process import Driver
from tests.support.java_login import java_login, most_logins
from tests.support.sasl_node import PASSWORD, SECONDS_MAX, TOPIC, USER, SaslNode

KEY = "a secret key of many characters"
EXPIRY_MS = 3000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    folder = tmp_path_factory.mktemp("tokens")
    with SaslNode(folder / "node", delegation_token_secret_key=KEY) as node:
        node.prepare()
        yield node


@pytest.fixture
def admin(node: SaslNode) -> Iterator[SyncAdmin]:
    with admin_of(node) as admin:
        yield admin


def admin_of(node: SaslNode) -> SyncAdmin:
    return Admin(node.sasl_address, sasl=Sasl("SCRAM-SHA-512", USER, PASSWORD)).sync()


def driver_of(folder: Path, token: DelegationToken, mechanism: str = "SCRAM-SHA-256") -> Driver:
    """Return the driver of a client that has the token."""
    return java_login(folder, mechanism, token.token_id, token.password, is_token=True)


@pytest.mark.slow  # a JVM each; ``tests/kafka`` has the same messages
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_produces_and_consumes_by_a_token(
    node: SaslNode, admin: SyncAdmin, tmp_path: Path, mechanism: str
) -> None:
    driver = driver_of(tmp_path, admin.create_delegation_token(), mechanism)
    before = len(node.logins())
    assert len(driver.produce(node.sasl_address, TOPIC, [Message(b"v", partition=0)])) == 1
    with driver.member(node.sasl_address, TOPIC, f"tokens-{mechanism}") as member:
        while not member.records:
            assert member.take_in(SECONDS_MAX)
    logins = {(principal, by) for _, principal, by in node.logins()[before:]}
    assert (f"User:{USER}", mechanism) in logins


@pytest.mark.slow
@pytest.mark.parametrize("case", ["removed", "expired", "forged"])
def test_java_raises_its_own_error_for_a_token_that_does_not_count(
    node: SaslNode, admin: SyncAdmin, tmp_path: Path, case: str
) -> None:
    token = admin.create_delegation_token()
    if case == "forged":
        token = replace(token, hmac=token.hmac[::-1])
    else:
        admin.expire_delegation_token(token.hmac, period_ms=-1 if case == "removed" else 0)
    with pytest.raises(AssertionError, match=r"errors\.SaslAuthenticationException"):
        driver_of(tmp_path, token).produce(node.sasl_address, TOPIC, [Message(b"v", partition=0)])


@contextmanager
def renewing(admin: SyncAdmin, token: DelegationToken) -> Iterator[None]:
    """Renew the token all the time."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(EXPIRY_MS / 4000):
            admin.renew_delegation_token(token.hmac)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(SECONDS_MAX)


@pytest.mark.slow  # seconds, to see some sessions end
def test_java_goes_on_with_a_renewed_token_without_losing_a_request(tmp_path: Path) -> None:
    """``connections.max.reauth.ms`` is not set: the token alone ends sessions."""
    settings = {
        "delegation_token_secret_key": KEY,
        "delegation_token_expiry_time_ms": str(EXPIRY_MS),
    }
    with SaslNode(tmp_path / "node", **settings) as node:
        node.prepare()
        with admin_of(node) as admin:
            token = admin.create_delegation_token()
            driver = driver_of(tmp_path, token)
            with renewing(admin, token):
                driver.produce_until(
                    node.sasl_address,
                    TOPIC,
                    lambda: most_logins(node, "SCRAM-SHA-256") >= 4,
                    seconds_max=SECONDS_MAX,
                )
            assert most_logins(node, "SCRAM-SHA-256") >= 4
