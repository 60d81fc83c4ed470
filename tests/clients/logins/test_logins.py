"""Every client logs in by every mechanism, and has its own error for a login that is wrong."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.clients.logins import foreign, python_clients
from tests.clients.logins.conftest import Place
from tests.clients.logins.login import MECHANISMS, TLS_ALONE, Login, ProduceAndConsume, Refused
from tests.support.sasl_node import USER

OAUTHBEARER = "OAUTHBEARER"
WITH_PASSWORD = [one for one in MECHANISMS if one not in (OAUTHBEARER, TLS_ALONE)]
WITH_DELEGATION_TOKENS = ("Java", "franz-go", "tidelog")  # those that send ``tokenauth``
KAFKA_ERRORS = "org.apache.kafka.common.errors"


class Expected(NamedTuple):
    """What a client raises: the class, or librdkafka's code, and words that users look for."""

    of_sasl: str
    of_tls: str
    words: str  # of a refused password, in its text or its log
    words_of_tls: str
    of_token: str = ""  # where it differs
    words_of_token: str = "invalid_token"

    def of(self, mechanism: str) -> tuple[str, str]:
        """Return the class and the words for a mechanism."""
        if mechanism == TLS_ALONE:
            return self.of_tls, self.words_of_tls
        if mechanism == OAUTHBEARER:
            return self.of_token or self.of_sasl, self.words_of_token
        return self.of_sasl, self.words


EXPECTED = {
    "Java": Expected(
        f"{KAFKA_ERRORS}.SaslAuthenticationException",
        f"{KAFKA_ERRORS}.SslAuthenticationException",
        words="Authentication failed",
        words_of_tls="post-handshake",
    ),
    "librdkafka": Expected(
        "_AUTHENTICATION",
        "_TRANSPORT",
        words="Authentication failed",
        words_of_tls="unknown ca",
    ),
    # It logs the error of the connection, and raises one for all reasons. A refused token it takes
    # for an accepted one, and its next request is one too many.
    "aiokafka": Expected(
        "KafkaConnectionError",
        "KafkaConnectionError",
        words="SaslAuthenticationFailed",
        words_of_tls="closed",
        words_of_token="closed",
    ),
    # It logs, too, and tries again until its time is up.
    "kafka-python": Expected(
        "KafkaTimeoutError",
        "KafkaTimeoutError",
        words="SaslAuthenticationFailedError",
        words_of_tls="UNKNOWN_CA",
        words_of_token="SaslAuthenticationFailedError",
    ),
    # With tokens it does as aiokafka does.
    "KafkaJS": Expected(
        "KafkaJSSASLAuthenticationError",
        "KafkaJSNumberOfRetriesExceeded",
        words="Authentication failed",
        words_of_tls="unknown ca",
        of_token="KafkaJSNumberOfRetriesExceeded",
        words_of_token="Closed connection",
    ),
    "franz-go": Expected(
        "kerr.SASL_AUTHENTICATION_FAILED",
        "net.OpError remote error",
        words="Authentication failed",
        words_of_tls="unknown certificate authority",
    ),
    "tidelog": Expected(
        "AuthenticationFailed",
        "AuthenticationFailed",
        words="Authentication failed",
        words_of_tls="unknown ca",
    ),
    "kcat": Expected(
        "exit status 1",
        "exit status 1",
        words="ERROR: Local: Authentication failure",
        words_of_tls="unknown ca",
    ),
}
FOREIGN = {
    "Java": foreign.java_client,
    "KafkaJS": foreign.kafkajs_client,
    "franz-go": foreign.franz_go_client,
}
PYTHON: dict[str, ProduceAndConsume] = {
    "librdkafka": python_clients.librdkafka,
    "aiokafka": python_clients.aiokafka_client,
    "kafka-python": python_clients.kafka_python,
    "tidelog": python_clients.sdk,
}
# By default each client has one mechanism, and each mechanism one client; ``make logins`` has all.
COMBINATIONS = [
    pytest.param(
        name,
        mechanism,
        marks=[] if name == "librdkafka" or mechanism == "SCRAM-SHA-512" else [pytest.mark.slow],
    )
    for name in EXPECTED
    for mechanism in MECHANISMS
]

Find = Callable[[str], ProduceAndConsume]


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Find]:
    """Return a client by its name; those that are processes run until the last test."""
    started: dict[str, foreign.ForeignClient | foreign.Kcat] = {}

    def client(name: str) -> ProduceAndConsume:
        if name in PYTHON:
            return PYTHON[name]
        if name not in started:
            started[name] = (
                foreign.Kcat(tmp_path_factory.mktemp("librdkafka"))
                if name == "kcat"
                else FOREIGN[name]()
            )
        return started[name]

    yield client
    for one in started.values():
        one.close()


@pytest.mark.parametrize(("name", "mechanism"), COMBINATIONS)
def test_a_client_produces_and_consumes(
    place: Place, find: Find, name: str, mechanism: str
) -> None:
    client, value = find(name), uuid.uuid4().hex
    before = len(place.node.logins())
    assert client(place.login(mechanism), value) == value
    as_whom = (f"User:{USER}", mechanism)
    if mechanism == TLS_ALONE:
        as_whom = (f"User:{place.subject}", "certificate")
    assert {login[1:] for login in place.node.logins()[before:]} == {as_whom}


# aiokafka leaves the socket of a connection open that ends while it logs in.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("name", "mechanism"), COMBINATIONS)
def test_a_client_raises_its_own_error_for_a_wrong_login(
    place: Place, find: Find, name: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password, a user that is not there, a token for others, a foreign authority."""
    client = find(name)
    before = len(place.node.logins())
    with pytest.raises(Refused) as refused:
        client(place.login(mechanism, is_right=False), "never")
    found, text = refused.value.name, refused.value.text
    del refused
    gc.collect()  # What it has left open is told of here, not in the next test.
    expected, words = EXPECTED[name].of(mechanism)
    assert found == expected
    assert words in text + caplog.text
    assert place.node.logins()[before:] == []


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("name", WITH_DELEGATION_TOKENS)
def test_a_client_logs_in_by_a_delegation_token(
    place: Place, find: Find, name: str, mechanism: str
) -> None:
    """And is the token's owner. With another token's HMAC it is nobody."""
    client, value = find(name), uuid.uuid4().hex
    token, other = place.delegation_token(), place.delegation_token()
    login = Login(
        place.node.sasl_address,
        mechanism,
        place.authority.trusted,
        user=token.token_id,
        password=token.password,
        is_delegation_token=True,
    )
    before = len(place.node.logins())
    assert client(login, value) == value
    assert {found[1:] for found in place.node.logins()[before:]} == {(f"User:{USER}", mechanism)}
    with pytest.raises(Refused) as refused:
        client(replace(login, password=other.password), "never")
    assert refused.value.name == EXPECTED[name].of_sasl


@pytest.mark.parametrize("mechanism", WITH_PASSWORD)
def test_the_kcat_of_debian_12_knows_plain_alone(place: Place, mechanism: str) -> None:
    """Its librdkafka, 2.0.2, gives SCRAM a wrong nonce, which Kafka 4 refuses too."""
    client, value = foreign.Kcat(None), uuid.uuid4().hex
    login = place.login(mechanism)
    if mechanism == "PLAIN" or not client.is_old:
        assert client(login, value) == value
    else:
        with pytest.raises(Refused, match="Authentication failure"):
            client(login, value)


def test_nothing_of_a_login_is_in_the_log(place: Place, find: Find) -> None:
    """At DEBUG, and by whatever client. No line is a failure of the node."""
    login = place.login(OAUTHBEARER)
    find("librdkafka")(login, "v")
    log = place.node.log
    assert "DEBUG" in log
    assert login.token.rpartition(".")[2] not in log
    assert "canary" not in log
    assert "Traceback" not in log
