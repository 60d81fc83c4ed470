"""Users' credentials on a running node: set by a client, and in no log or file."""

from __future__ import annotations

import base64
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tidelog_core.security.scram_credentials import ScramMechanism as StoredMechanism
from tidelog_core.security.scram_credentials import credential_from

from tests.support.message_bytes import varint
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, frame

SECONDS_MAX = 60.0
SHA_256 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
SHA_512 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)


def ended(futures: dict[str, Future[Any]]) -> dict[str, Any]:
    """Return what became of each user."""
    return {user: future.exception(SECONDS_MAX) for user, future in futures.items()}


def described(admin: AdminClient) -> dict[str, list[tuple[ScramMechanism, int]]]:
    found = admin.describe_user_scram_credentials().result(SECONDS_MAX)
    return {
        user: [(info.mechanism, info.iterations) for info in one.scram_credential_infos]
        for user, one in found.items()
    }


def test_librdkafka_creates_describes_and_deletes_users(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    assert described(admin) == {}
    upsertions = [
        UserScramCredentialUpsertion("alice", SHA_256, b"secret"),
        UserScramCredentialUpsertion("bob", SHA_512, b"secret", b"a salt of its own"),
    ]
    altered = admin.alter_user_scram_credentials(upsertions)
    assert ended(altered) == {"alice": None, "bob": None}
    users = {
        "alice": [(ScramMechanism.SCRAM_SHA_256, 8192)],
        "bob": [(ScramMechanism.SCRAM_SHA_512, 4096)],
    }
    assert described(admin) == users

    deletion = UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)
    assert ended(admin.alter_user_scram_credentials([deletion])) == {"alice": None}
    assert list(described(admin)) == ["bob"]
    failed = ended(admin.alter_user_scram_credentials([deletion]))["alice"]
    assert failed.args[0].code() == KafkaError.RESOURCE_NOT_FOUND
    with pytest.raises(KafkaException) as missing:
        admin.describe_user_scram_credentials(["alice"])["alice"].result(SECONDS_MAX)
    assert missing.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def alteration(user: bytes, salted_password: bytes) -> bytes:
    """Return the body of AlterUserScramCredentials."""

    def compact(value: bytes) -> bytes:
        return varint(len(value) + 1) + value

    one = compact(user) + b"\x01" + (4096).to_bytes(4) + compact(b"salt")
    return varint(1) + varint(2) + one + compact(salted_password) + b"\0" + b"\0"


def test_passwords_and_keys_are_in_no_log_and_in_no_file_but_the_store(tmp_path: Path) -> None:
    """The log is of DEBUG, and some of the requests are malformed."""
    salted = b"canary-of-a-salted-password-1234"
    keys = credential_from(StoredMechanism.SCRAM_SHA_256, salted, salt=b"salt", iterations=4096)
    whole = alteration(b"alice", salted)
    with NodeProcess(tmp_path / "node", arguments=("--log-level", "DEBUG")) as node:
        with WireClient(node.port) as client:
            client.send(frame(51, 0, 1, whole, tags=b"\0"))
            assert b"alice" in client.receive()
        for body in (whole[:-1], whole[:-20], whole + b"more", whole[1:], b"\x05" + whole):
            with WireClient(node.port) as client:
                client.send(frame(51, 0, 1, body, tags=b"\0"))
                client.is_closed_by_node()
        node.stop()
        log = node.log_path.read_bytes()
    leaks = [
        form
        for secret in (salted, keys.stored_key, keys.server_key)
        for form in (secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode())
    ]
    assert b"DEBUG" in log
    assert not any(leak in log for leak in leaks)
    holding = {
        path.name.split(".")[0]
        for path in tmp_path.rglob("*")
        if path.is_file() and any(leak in path.read_bytes() for leak in leaks)
    }
    assert holding == {"metadata"}
