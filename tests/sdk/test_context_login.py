"""Every way to log in, as a context or the environment says it, at a real listener with TLS."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from joserfc.jwk import ECKey
from tidelog import Admin, ClientFactory, Consumer, Producer, SaslToken, TokenFile, TopicPartition
from tidelog.errors import AuthenticationFailed, TokenNotFetched
from tidelog.settings.security import connection_settings

from tests.support.command import called
from tests.support.drivers.process import ROOT
from tests.support.http_answers import HttpAnswers
from tests.support.issuer import Issuer
from tests.support.sasl_node import PASSWORD, TOPIC, USER
from tests.support.secured_node import SecuredNode
from tests.support.sts import success
from tools import kafka_java
from tools.java_options import QUICK_JAVA

ROLE = "arn:aws:iam::123456789012:role/orders/Reader"
DRIVERS = ROOT / "tests" / "support" / "drivers"
AWS_ISSUER = "https://5f4d.tokens.sts.global.api.aws"


@pytest.fixture(scope="module")
def sts_key() -> ECKey:
    """A key of the issuer's, as AWS has them."""
    return ECKey.generate_key("P-384", {"kid": "EC384_0", "use": "sig"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, sts_key: ECKey) -> Iterator[SecuredNode]:
    folder = tmp_path_factory.mktemp("context-login")
    issuer = Issuer(folder / "keys.json", issuer=AWS_ISSUER)
    issuer.publish(issuer.key, sts_key)
    with SecuredNode(folder, issuer=issuer) as node:
        node.prepare()
        yield node


@pytest.fixture(scope="module")
def endpoint(node: SecuredNode) -> Iterator[HttpAnswers]:
    """The issuer's token endpoint, whose client is called app."""

    def answer(_: object) -> tuple[int, str]:
        return 200, json.dumps({"access_token": node.issuer.token("app"), "expires_in": 600})

    with HttpAnswers(answer) as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of settings."""
    for name in os.environ:
        if name.startswith("TIDELOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tidelog").mkdir()
    return tmp_path / "tidelog"


def write_context(home: Path, node: SecuredNode, login: dict[str, str]) -> None:
    settings = {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(node.authority.trusted),
        **login,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path = home / "config.toml"
    path.write_text("\n".join(["current = 'it'", "[contexts.it]", *lines]) + "\n")
    path.chmod(0o600)


def of_endpoint(endpoint: HttpAnswers) -> dict[str, str]:
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{endpoint.url}/token",
        "sasl.oauthbearer.client.id": "app",
        "sasl.oauthbearer.client.secret": "canary-secret",
    }


def logins(home: Path, node: SecuredNode, endpoint: HttpAnswers) -> dict[str, dict[str, str]]:
    """Return every way to log in, with files in the folder."""
    (home / "password").write_text(PASSWORD + "\n")
    (home / "token").write_text(node.issuer.token("pod") + "\n")
    certificate, key = locked_pair(node.authority.client_pem("alice"), home)
    return {
        "SCRAM-SHA-256": {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
        "SCRAM-SHA-512": {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password.location": "password",
        },
        "PLAIN": {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "x.PlainLoginModule required"
            f' username="{USER}" password="{PASSWORD}";',
        },
        "issuer": of_endpoint(endpoint),
        "file": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{home}/token",
            "sasl.oauthbearer.extensions": "cluster=lkc-1",
        },
        "certificate": {
            "bootstrap.servers": node.tls_address,
            "security.protocol": "SSL",
            "ssl.certificate.location": certificate.name,
            "ssl.key.location": key.name,
            "ssl.key.password": PASSWORD,
        },
    }


def locked_pair(pem: Path, folder: Path) -> tuple[Path, Path]:
    """Return files of the certificates, and of their key under the password."""
    text = pem.read_bytes()
    key = serialization.load_pem_private_key(text, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    certificate, locked = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(text[text.index(b"-----BEGIN CERTIFICATE") :])
    locked.write_bytes(key)
    return certificate, locked


@pytest.mark.parametrize(
    "way",
    ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "issuer", "file", "certificate"],
)
async def test_every_mechanism_works_by_a_context(
    node: SecuredNode,
    endpoint: HttpAnswers,
    home: Path,
    way: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    write_context(home, node, logins(home, node, endpoint)[way])
    factory = ClientFactory.from_context("it")
    async with factory.make(Producer) as producer:
        sent = await producer.send_and_wait(TOPIC, way.encode())
    async with factory.make(Consumer) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        record = await anext(aiter(consumer))
    assert record.value == way.encode()
    for secret in (PASSWORD, "canary-secret", (home / "token").read_text().strip()):
        assert secret not in caplog.text


def test_commands_reach_the_cluster_of_a_context(
    node: SecuredNode, endpoint: HttpAnswers, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_context(home, node, logins(home, node, endpoint)["SCRAM-SHA-512"])
    text = (home / "config.toml").read_text().replace("current = 'it'\n", "")
    (home / "config.toml").write_text(text)
    assert TOPIC in called("--context", "it", "topic", "list").lines[1]
    monkeypatch.setenv("TIDELOG_CONTEXT", "it")
    assert TOPIC in called("topic", "list").out.decode()
    monkeypatch.setenv("TIDELOG_SASL_USERNAME", "nobody")
    refused = called("topic", "list", status=1)
    assert "Authentication failed" in refused.errors
    refused = called("--context", "other", "topic", "list", status=2)
    assert "has no context 'other', its contexts are: it" in refused.errors


def test_the_environment_alone_is_enough(
    node: SecuredNode, endpoint: HttpAnswers, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(node.authority.trusted),
        **of_endpoint(endpoint),
    }
    for name, value in given.items():
        monkeypatch.setenv("TIDELOG_" + name.upper().replace(".", "_"), value)
    assert TOPIC in called("topic", "list").out.decode()


def test_a_file_of_kafkas_has_the_addresses_and_the_source_of_tokens(
    node: SecuredNode, endpoint: HttpAnswers, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    given = {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(node.authority.trusted),
        **of_endpoint(endpoint),
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    listed = called("--command-config", file, "topic", "list")
    assert TOPIC in listed.out.decode()
    assert "app" in {principal.removeprefix("User:") for _, principal, _ in node.logins()}
    file.write_text(file.read_text().replace(node.sasl_address, "127.0.0.1:1"))
    called("--command-config", file, "topic", "list", "--bootstrap", node.sasl_address)


def test_librdkafka_takes_the_same_file(node: SecuredNode, endpoint: HttpAnswers) -> None:
    """Of a client of an issuer, with librdkafka's names."""
    given = {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(node.authority.trusted),
        "sasl.oauthbearer.method": "oidc",
        **of_endpoint(endpoint),
    }
    assert isinstance(connection_settings(given)["sasl"], SaslToken)
    asked_before = len(endpoint.asked)
    assert TOPIC in AdminClient(given).list_topics(timeout=60).topics
    assert [asked.form for asked in endpoint.asked[asked_before:]] == [
        {"grant_type": "client_credentials"}
    ]


@pytest.mark.slow
@pytest.mark.parametrize("names", ["4.1", "jaas"])
def test_java_takes_the_same_file(
    node: SecuredNode, endpoint: HttpAnswers, home: Path, tmp_path: Path, names: str
) -> None:
    """Of a client of an issuer, with the names of Java 4.1 and with those before."""
    java, jars = shutil.which("java"), kafka_java.token_class_path()
    if java is None or jars is None:
        pytest.skip("needs java and Kafka's jars: run `make tools`")
    package = "org.apache.kafka.common.security.oauthbearer"
    own = {
        "4.1": {
            "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "sasl.oauthbearer.jwt.retriever.class": f"{package}.ClientCredentialsJwtRetriever",
            "sasl.oauthbearer.client.credentials.client.id": "app",
            "sasl.oauthbearer.client.credentials.client.secret": names,
            "sasl.oauthbearer.scope": "kafka",
        },
        "jaas": {
            "sasl.jaas.config": f'{package}.OAuthBearerLoginModule required clientId="app"'
            f' clientSecret="{names}" scope="kafka";',
        },
    }
    given = {
        "bootstrap.servers": node.sasl_address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(node.authority.trusted),
        "ssl.truststore.type": "PEM",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": f"{endpoint.url}/token",
        **own[names],
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    asked_before = len(endpoint.asked)
    called("--command-config", file, "topic", "list")
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.url}/token"
    classes = kafka_java.compiled(DRIVERS / "PropertiesDriver.java")
    listed = subprocess.run(
        [java, *QUICK_JAVA, allowed, "-cp", f"{jars}:{classes}", "PropertiesDriver", str(file)],
        capture_output=True,
        check=False,
    )
    assert listed.stdout.decode().split() == [TOPIC], listed.stderr.decode()
    ours, javas = endpoint.asked[asked_before:]
    assert ours.form == javas.form == {"grant_type": "client_credentials", "scope": "kafka"}
    assert ours.headers["authorization"] == javas.headers["authorization"]


async def test_a_file_is_read_for_each_login(node: SecuredNode, tmp_path: Path) -> None:
    """As Kubernetes renews a projected token."""
    file = tmp_path / "token"
    sasl = SaslToken(TokenFile(file))
    context = node.authority.client_context()
    for user in ("first", "second"):
        file.write_text(node.issuer.token(user))
        async with Admin(node.sasl_address, ssl=context, sasl=sasl) as admin:
            await admin.list_topics()
        assert f"User:{user}" in {principal for _, principal, _ in node.logins()}
    file.write_text("two tokens\n")
    with pytest.raises(AuthenticationFailed, match="something else than a token"):
        await Admin(node.sasl_address, ssl=context, sasl=sasl).start()
    file.unlink()
    with pytest.raises(AuthenticationFailed, match="No such file"):
        await Admin(node.sasl_address, ssl=context, sasl=sasl).start()


async def test_an_issuer_that_refuses_ends_the_attempt_and_one_that_is_away_is_tried_again(
    node: SecuredNode,
) -> None:
    context = node.authority.client_context()
    with HttpAnswers(lambda _: (401, '{"error":"invalid_client"}')) as server:
        refused = connection_settings({"security.protocol": "SASL_SSL", **of_endpoint(server)})
        admin = Admin(node.sasl_address, ssl=context, sasl=refused["sasl"])
        with pytest.raises(AuthenticationFailed, match="refuses the client 'app': 401 invalid"):
            await admin.start()
        assert len(server.asked) == 1
        token = json.dumps({"access_token": node.issuer.token("late")})
        server.answer = lambda _: (503, "") if len(server.asked) < 4 else (200, token)
        async with Admin(node.sasl_address, ssl=context, sasl=refused["sasl"]) as admin:
            await admin.list_topics()
        server.answer = lambda _: (503, "")
        away = {**of_endpoint(server), "sasl.oauthbearer.client.id": "other"}
        sasl = connection_settings({"security.protocol": "SASL_SSL", **away})["sasl"]
        admin = Admin(node.sasl_address, ssl=context, sasl=sasl, request_timeout_ms=1_500)
        with pytest.raises(
            TokenNotFetched, match=r"^no token from http://127.0.0.1:\d+/token: 503"
        ) as failed:
            await admin.start()
        assert "check sasl.oauthbearer.token.endpoint.url" in failed.value.hint


def test_a_node_takes_the_token_of_a_role_of_aws(
    node: SecuredNode, sts_key: ECKey, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is signed as STS does it, by ES384, and ``sub`` is the role's ARN."""
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    claims = {"sub": ROLE, "exp": int(expires_at.timestamp()), "jti": "1"}
    token = node.issuer.token(key=sts_key, header={"alg": "ES384"}, **claims)
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_CONFIG_FILE": "/nowhere",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with HttpAnswers(lambda _: (200, success(token, expires_at))) as sts:
        config = f"audience=tidelog,region=eu-west-1,sts_endpoint={sts.url}"
        login = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.metadata.authentication.type": "aws_iam",
            "sasl.oauthbearer.config": config,
        }
        write_context(home, node, login)
        assert TOPIC in called("topic", "list").out.decode()
        with ClientFactory.from_context().make(Producer).sync() as producer:
            producer.send_and_wait(TOPIC, b"of a role")
        assert len(sts.asked) == 1  # The command and the producer are in one process here.
    assert f"User:{ROLE}" in {principal for _, principal, _ in node.logins()}
