"""``tidelog up --secure``: encrypted, with a login, and ready for every client."""

from __future__ import annotations

import datetime
import ssl
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from cryptography import x509
from tidelog.settings.properties_file import read_properties
from tidelog.settings.security import connection_settings
from tidelog_cli.local import secured
from tidelog_cli.local.secured import prepare

from tests.cli.local.test_up import running
from tests.support.command import called
from tests.support.waiting import eventually
from tools import kcat
from tools.ports import free_ports

SECONDS_MAX = 60.0


def test_a_cluster_is_secure_in_one_word(tmp_path: Path) -> None:
    data_dir, port = tmp_path / "data", free_ports(2)
    folder = data_dir / "secure"
    with running(data_dir, port, "--nodes", "2", "--secure"):
        properties = read_properties(folder / "librdkafka.properties")
        admin = AdminClient(properties)
        brokers = admin.list_topics(timeout=SECONDS_MAX).brokers.values()
        assert sorted(broker.port for broker in brokers) == [port, port + 1]
        connect = ("--command-config", folder / "client.properties")
        bootstrap = f"127.0.0.1:{port + 1}"
        called(*connect, "topic", "create", "t", bootstrap=bootstrap)
        assert "t" in called(*connect, "topic", "list", bootstrap=bootstrap).out.decode()
        listing = kcat_listing(folder / "librdkafka.properties")
        assert listing is None or '"t"' in listing
        plain = called("topic", "list", bootstrap=bootstrap, status=None)
        assert plain.status == 1
        token = called(*connect, "token", "create", "--json", bootstrap=bootstrap).document
        assert token["owner"] == "User:admin"
        password = properties["sasl.password"]
        give_alice_a_right(connect, bootstrap, properties, tmp_path)
        problems: list[KafkaError] = []
        told = {"sasl.password": "wrong", "log_level": 0, "error_cb": problems.append}
        wrong = AdminClient({**properties, **told})
        eventually(lambda: bool(wrong.poll(0.05) or problems), "the wrong password is refused")
        assert problems[0].code() == KafkaError._AUTHENTICATION
    # The same files and the same user after a restart.
    with running(data_dir, port, "--secure"):
        assert read_properties(folder / "librdkafka.properties")["sasl.password"] == password
        assert "t" in AdminClient(properties).list_topics(timeout=SECONDS_MAX).topics


def give_alice_a_right(
    connect: tuple[object, ...], bootstrap: str, properties: Mapping[str, str], folder: Path
) -> None:
    """A user has no rights but those that ACLs give."""
    password = folder / "alice"
    password.write_text("secret-1")
    given = ("--password-file", password)
    called(*connect, "user", "add", "alice", *given, bootstrap=bootstrap)
    alice = AdminClient({**properties, "sasl.username": "alice", "sasl.password": "secret-1"})
    assert "t" not in alice.list_topics(timeout=SECONDS_MAX).topics
    rule = ("--topic", "t", "--operation", "Read", "--allow-principal", "User:alice")
    called(*connect, "acl", "add", *rule, bootstrap=bootstrap)
    deadline = time.monotonic() + SECONDS_MAX  # The other node sees the ACL a little later.
    while "t" not in alice.list_topics(timeout=SECONDS_MAX).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kcat_listing(properties: Path) -> str | None:
    """Return what kcat lists, ``None`` if it is not installed."""
    found = kcat.command()
    if found is None:
        return None
    program, environment = found
    command = [program, "-F", str(properties), "-L"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    return done.stdout


def test_only_the_user_may_read_what_is_made(tmp_path: Path) -> None:
    made = prepare(tmp_path / "data", "127.0.0.1", range(9092, 9093))
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    for path in made.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    names = {"authority.key.pem", "authority.pem", "node.pem", "token.key"}
    names |= {"client.properties", "librdkafka.properties"}
    assert {path.name for path in made.folder.iterdir()} == names


def test_both_files_say_the_same(tmp_path: Path) -> None:
    made = prepare(tmp_path / "data", "::1", range(9092, 9094))
    java = read_properties(made.client_properties)
    librdkafka = read_properties(made.folder / "librdkafka.properties")
    assert java["bootstrap.servers"] == librdkafka["bootstrap.servers"] == "[::1]:9092,[::1]:9093"
    for given in (java, librdkafka):
        security = connection_settings(given)
        assert security["sasl"] is not None
        assert (security["sasl"].user, security["sasl"].password) == ("admin", made.password)
        assert isinstance(security["ssl"], ssl.SSLContext)


def test_other_ports_are_in_the_files_and_the_password_stays(tmp_path: Path) -> None:
    made = prepare(tmp_path / "data", "127.0.0.1", range(9092, 9093))
    password = made.password
    made = prepare(tmp_path / "data", "127.0.0.1", range(19_092, 19_094))
    servers = read_properties(made.client_properties)["bootstrap.servers"]
    assert (servers, made.password) == ("127.0.0.1:19092,127.0.0.1:19093", password)


def test_the_nodes_certificate_is_made_again_when_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def node_pem(host: str) -> bytes:
        return prepare(tmp_path / "data", host, range(9092, 9093)).node_pem.read_bytes()

    first = node_pem("127.0.0.1")
    assert node_pem("127.0.0.1") == first
    authority = (tmp_path / "data/secure/authority.pem").read_bytes()
    other_host = node_pem("node.example")
    assert other_host != first
    names = x509.load_pem_x509_certificates(other_host)[0].extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"node.example", "localhost"} == set(found.get_values_for_type(x509.DNSName))
    monkeypatch.setattr(secured, "RENEWED_BEFORE", secured.VALID_FOR + datetime.timedelta(days=1))
    assert node_pem("node.example") != other_host
    assert (tmp_path / "data/secure/authority.pem").read_bytes() == authority
