"""The SDK and the command log in, by SCRAM and PLAIN, with TLS and without."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidelog import Admin, Consumer, Producer, Sasl, SaslToken, TopicPartition
from tidelog.errors import (
    AuthenticationFailed,
    InvalidConfig,
    TokenNotFetched,
    UnsupportedSaslMechanism,
)
from tidelog.settings.properties_file import read_properties
from tidelog.settings.security import connection_settings

from tests.support.certificates import Authority
from tests.support.command import called
from tests.support.sasl_node import MECHANISMS, PASSWORD, TOPIC, USER, SaslNode

REAUTHENTICATION_MS = 1500


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    with SaslNode(tmp_path_factory.mktemp("sasl") / "node") as node:
        node.prepare()
        yield node


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_user_produces_and_consumes(node: SaslNode, mechanism: str) -> None:
    sasl = Sasl(mechanism, USER, PASSWORD)
    async with Producer(node.sasl_address, sasl=sasl) as producer:
        sent = await producer.send_and_wait(TOPIC, mechanism.encode())
    async with Consumer(node.sasl_address, sasl=sasl) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        record = await anext(aiter(consumer))
    assert record.value == mechanism.encode()
    assert mechanism in {name for _, _, name in node.logins()}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
async def test_a_wrong_password_fails_at_once(
    node: SaslNode, mechanism: str, user: str, password: str
) -> None:
    """Not after the time that unreachable nodes are tried for: no retry mends it."""
    async with asyncio.timeout(60):
        with pytest.raises(AuthenticationFailed, match="Authentication failed"):
            await Admin(node.sasl_address, sasl=Sasl(mechanism, user, password)).start()


async def test_a_mechanism_that_the_node_does_not_offer_is_named(tmp_path: Path) -> None:
    config = {"listener_name_sasl_sasl_enabled_mechanisms": "SCRAM-SHA-512"}
    with SaslNode(tmp_path / "node", **config) as node:
        sasl = Sasl("SCRAM-SHA-256", USER, PASSWORD)
        with pytest.raises(UnsupportedSaslMechanism, match="it offers SCRAM-SHA-512"):
            await Admin(node.sasl_address, sasl=sasl).start()


async def test_sessions_that_end_lose_no_record_and_no_order(tmp_path: Path) -> None:
    """Connections are replaced before the node ends their sessions (KIP-368)."""
    config = {"connections_max_reauth_ms": str(REAUTHENTICATION_MS)}
    with SaslNode(tmp_path / "node", **config) as node:
        node.prepare()
        sasl = Sasl("SCRAM-SHA-256", USER, PASSWORD)
        offsets: list[int] = []
        ends_at = asyncio.get_running_loop().time() + 3 * REAUTHENTICATION_MS / 1000
        async with Producer(node.sasl_address, sasl=sasl, linger_ms=0, retries=1) as producer:
            while asyncio.get_running_loop().time() < ends_at:
                sent = [await producer.send(TOPIC, b"x" * 100) for _ in range(20)]
                offsets += [(await delivery).offset for delivery in sent]
        assert offsets == list(range(len(offsets)))
        assert len(node.logins()) >= 4


@pytest.mark.parametrize(
    ("sasl", "problem"),
    [
        (Sasl("GSSAPI", "a", "b"), "must be one of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"),
        (Sasl("PLAIN", "", "b"), "needs a user and a password"),
        (Sasl("PLAIN", "a\0b", "b"), "NUL"),
        (Sasl("SCRAM-SHA-256", "ä", "b"), "the SASL user"),
    ],
)
async def test_a_wrong_login_is_refused_before_it_is_tried(sasl: Sasl, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        await Admin("localhost:1", sasl=sasl).start()


@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionRefusedError("no"), OSError()])
async def test_a_token_that_the_network_keeps_away_is_tried_for_again(error: OSError) -> None:
    with pytest.raises(TokenNotFetched) as failed:
        await SaslToken(_raising(error)).first_message(timeout_s=60)
    assert failed.value.retriable
    assert repr(failed.value.__cause__) == repr(error)  # asyncio copies a timeout.
    assert repr(error) in str(failed.value)
    assert "the function given to SaslToken" in failed.value.hint
    assert "endpoint" not in failed.value.hint  # Not every function calls one.


async def test_a_token_function_that_takes_too_long_is_told_its_time() -> None:
    never = asyncio.Event()

    async def token() -> str:
        await never.wait()
        return ""

    with pytest.raises(TokenNotFetched, match=r"within 0\.05 s") as failed:
        await SaslToken(token).first_message(timeout_s=0.05)
    assert "within request_timeout_ms" in failed.value.hint


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("no"), RuntimeError()])
async def test_a_token_function_with_a_fault_is_no_login(error: Exception) -> None:
    with pytest.raises(AuthenticationFailed) as failed:
        await SaslToken(_raising(error)).first_message(timeout_s=60)
    assert not failed.value.retriable
    assert failed.value.__cause__ is error


def _raising(error: Exception) -> Callable[[], str]:
    def token() -> str:
        raise error

    return token


def test_no_text_shows_a_password() -> None:
    assert "canary" not in repr(Sasl("PLAIN", "alice", "canary"))


# -- files of settings --


def test_the_command_connects_as_a_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    config = {
        "listener_security_protocol_map": "OPEN:PLAINTEXT,SASL:SASL_SSL",
        "ssl_keystore_location": str(authority.node_pem()),
    }
    with SaslNode(tmp_path / "node", **config) as node:
        node.prepare()
        file = tmp_path / "client.properties"
        file.write_text(
            "# for Kafka's tools too\nsecurity.protocol=SASL_SSL\n"
            f"ssl.truststore.location={authority.trusted}\nssl.truststore.type=PEM\n"
            "sasl.mechanism=SCRAM-SHA-512\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{USER}" password="{PASSWORD}";\nclient.id=other\n'
        )
        listing = ("topic", "list", "--bootstrap", node.sasl_address)
        assert TOPIC in called("--command-config", file, *listing).out.decode()
        monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(file))
        assert TOPIC in called(*listing).out.decode()
        file.write_text(file.read_text().replace(PASSWORD, "not-this-one"))
        refused = called(*listing, status=1)
        assert "Authentication failed" in refused.errors
        assert "not-this-one" not in refused.errors


def test_both_clients_names_are_known(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = str(authority.client_pem("alice"))
    java = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(authority.trusted),
        "ssl.keystore.location": pem,
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
        r' username="a\"b" password="c;\\d";',
    }
    librdkafka = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(authority.trusted),
        "ssl.certificate.location": pem,
        "ssl.key.location": pem,
        "sasl.mechanisms": "PLAIN",
        "sasl.username": 'a"b',
        "sasl.password": r"c;\d",
    }
    for given in (java, librdkafka):
        security = connection_settings(given)
        assert security["sasl"] == Sasl("PLAIN", 'a"b', r"c;\d")
        assert isinstance(security["ssl"], ssl.SSLContext)
        assert security["ssl"].check_hostname


@pytest.mark.parametrize("text", ["${env:HOME}", "${file:/etc/passwd:root}", "$HOME", "~", "%h"])
def test_nothing_in_a_file_of_settings_is_replaced(tmp_path: Path, text: str) -> None:
    """CVE-2024-31141: Kafka's clients read files and variables that a value names."""
    file = tmp_path / "client.properties"
    file.write_text(
        f"sasl.mechanism=PLAIN\nsecurity.protocol=SASL_PLAINTEXT\nsasl.username={text}\n"
        f"sasl.password={text}\n"
    )
    sasl = connection_settings(read_properties(file))["sasl"]
    assert sasl == Sasl("PLAIN", text, text)


def test_hosts_are_checked_unless_a_setting_says_otherwise(tmp_path: Path) -> None:
    given = {"security.protocol": "SSL", "ssl.ca.location": str(Authority(tmp_path).trusted)}
    checked = connection_settings(given)["ssl"]
    unchecked = connection_settings(given | {"ssl.endpoint.identification.algorithm": ""})["ssl"]
    assert checked is not None
    assert unchecked is not None
    assert (checked.check_hostname, unchecked.check_hostname) == (True, False)
    assert unchecked.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("security.protocol=TLS", "security.protocol must be one of PLAINTEXT, SSL"),
        ("ssl.truststore.type=JKS", "ssl.truststore.type must be PEM"),
        ("ssl.trust=/x", "ssl.trust is not known, known are ssl.endpoint"),
        ("security.protocol=SSL\nssl.ca.location=/nowhere", "must be PEM files"),
        ("security.protocol=SASL_PLAINTEXT", "SASL mechanism must be one of"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.jaas.config=x", "sasl.jaas.config must be"),
        ("security.protocol", "line 1: it must be name=value"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=problem):
        connection_settings(read_properties(file))
    with pytest.raises(InvalidConfig, match="cannot read"):
        read_properties(tmp_path / "none")
