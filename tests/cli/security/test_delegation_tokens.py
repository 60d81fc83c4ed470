"""``tidelog token`` over a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Outcome, called
from tests.support.sasl_node import PASSWORD, USER, SaslNode

BOB = "bob"
KEY = "a secret key of many characters"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    folder = tmp_path_factory.mktemp("tokens")
    with SaslNode(folder / "node", delegation_token_secret_key=KEY) as node:
        node.prepare()
        node.set_password(PASSWORD, BOB)
        yield node


@pytest.fixture
def run(node: SaslNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``tidelog token`` as a user."""

    def call(*arguments: object, user: str = USER, status: int = 0, **login: str) -> Outcome:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            **{name.replace("_", "."): value for name, value in login.items()},
        }
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        monkeypatch.setenv("TIDELOG_COMMAND_CONFIG", str(file))
        return called("token", *arguments, bootstrap=node.sasl_address, status=status)

    return call


def test_a_token_is_created_listed_renewed_and_expired(run: Any) -> None:
    renewer = ("--renewer-principal", f"User:{BOB}")
    token = run("create", *renewer, "--max-life-time-period", 7_200_000, "--json").document
    assert (token["owner"], token["requester"]) == (f"User:{USER}", f"User:{USER}")
    assert token["renewers"] == [f"User:{BOB}"]
    assert token["expires"] == token["ends"]
    lines = run("list").lines
    header = ["TOKEN", "ID", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "ENDS"]
    assert lines[0].split() == header
    assert lines[1].startswith(token["token_id"])
    assert token["hmac"] not in "\n".join(lines)
    assert token["hmac"] in "\n".join(run("list", "--hmac", user=BOB).lines)
    (listed,) = run("list", "--json").document
    assert listed == {name: value for name, value in token.items() if name != "hmac"}
    assert run("list", "--owner-principal", "User:carol", "--json").document == []
    renewed = run("renew", token["token_id"], "--renew-time-period", 60_000, user=BOB)
    assert renewed.lines[0].startswith(f"token {token['token_id']} expires at 20")
    soon = run("expire", token["token_id"], "--expiry-time-period", 30_000, "--json").document
    assert soon["token_id"] == token["token_id"]
    assert soon["expires"] < token["expires"]
    assert run("expire", token["token_id"]).lines == [f"token {token['token_id']} removed"]
    assert run("list", "--json").document == []
    gone = run("renew", token["token_id"], status=1)
    assert "tidelog token list" in gone.errors
    assert gone.errors.count("\n") == 1


def test_a_created_token_is_printed_for_people_and_logs_in(run: Any) -> None:
    lines = run("create").lines
    shown = dict(line.split(": ", 1) for line in lines)
    assert list(shown) == [
        *("token id", "owner", "requester", "renewers", "issued", "expires", "ends", "hmac")
    ]
    login = {
        "sasl_password": shown["hmac"],
        "sasl_tokenauth": "true",
    }
    refused = run("list", user=shown["token id"], status=1, **login)
    assert "not allowed" in refused.errors.lower()
    run("expire", shown["token id"])
    out = run("list", user=shown["token id"], status=1, **login)
    assert "authentication failed" in out.errors.lower()


def test_wrong_principals_are_refused_before_they_are_sent(run: Any) -> None:
    for option in ("--owner-principal", "--renewer-principal"):
        outcome = run("create", option, "alice", status=2)
        assert "User:alice" in outcome.errors
    assert "User:alice" in run("list", "--owner-principal", "alice", status=2).errors
    assert run("list", "--json").document == []
