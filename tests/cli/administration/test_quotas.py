"""``tidelog quota`` over a real node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tidelog_cli.administration.quotas import KEYS_OF_ADDRESSES, KEYS_OF_CLIENTS
from tidelog_core.quotas.quota_entity import QuotaEntity
from tidelog_core.quotas.quota_keys import QuotaKey, checked_quota

from tests.support.batches import batch_of
from tests.support.command import Outcome, called
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("quotas") / "node") as node:
        yield node.address


def quota(address: str, *arguments: object, status: int = 0) -> Outcome:
    return called("quota", *arguments, bootstrap=address, status=status)


def listed(address: str, *arguments: object) -> Any:
    return quota(address, "list", *arguments, "--json").document


def test_quotas_are_set_listed_and_removed(address: str) -> None:
    rates = ("producer_byte_rate=1048576", "request_percentage=50.5")
    done = quota(address, "set", *rates, "--user", "ann", "--client-id-default")
    assert done.lines == ["2 quotas of user ann, client-id <default> set"]
    quota(address, "set", "connection_creation_rate=9", "--ip", "10.0.0.1")
    lines = [line.split() for line in quota(address, "list").lines]
    assert lines[0] == ["ENTITY", "QUOTA", "VALUE"]
    assert lines[1][-2:] == ["connection_creation_rate", "9"]
    assert [line[-1] for line in lines[2:]] == ["1048576", "50.5"]
    assert listed(address, "--user", "ann") == [
        {
            "entity": {"user": "ann", "client-id": None},
            "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 50.5},
        }
    ]
    assert listed(address, "--user", "bob") == []
    quota(address, "remove", "request_percentage", "--user", "ann", "--client-id-default")
    assert [row["quotas"] for row in listed(address, "--client-id-default")] == [
        {"producer_byte_rate": 1048576.0}
    ]
    quota(address, "remove", "--user", "ann", "--client-id-default")
    done = quota(address, "remove", "--ip", "10.0.0.1")
    assert done.lines == ["all quotas of ip 10.0.0.1 removed"]
    assert listed(address) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("set", "producer_byte_rate=5"), "name whom it is for"),
        (("set", "producer_byte_rate=x", "--user", "a"), "a number is needed"),
        (("set", "producer_byte_rate", "--user", "a"), "must be NAME=VALUE"),
        (("set", "producer_rate=5", "--user", "a"), "producer_rate is no quota of user a"),
        (("set", "producer_byte_rate=5", "--ip", "10.0.0.1"), "there are connection_creation"),
        (("set", "connection_creation_rate=5", "--ip", "host.example"), "not a valid IP"),
        (("set", "producer_byte_rate=5", "--user", "a", "--user-default"), "not both"),
        (("set", "producer_byte_rate=5", "--user", ""), "must not be empty"),
        (("list", "--ip-default", "--user", "a"), "an address is an entity by itself"),
        (("remove", "--client-id", "a", "x"), "x is no quota of client-id a"),
    ],
)
def test_wrong_usage_says_what_is_allowed(
    address: str, arguments: tuple[str, ...], problem: str
) -> None:
    assert problem in quota(address, *arguments, status=2).errors


def test_a_quota_that_the_node_refuses_is_a_failure(address: str) -> None:
    failed = quota(address, "set", "producer_byte_rate=0.5", "--user", "a", status=1)
    assert "cannot be a fractional value" in failed.errors


def test_the_names_of_quotas_are_those_of_nodes() -> None:
    assert {*KEYS_OF_CLIENTS, *KEYS_OF_ADDRESSES} == {key.value for key in QuotaKey}
    for name in KEYS_OF_CLIENTS:
        checked_quota(QuotaEntity("a"), name, 1.0)


def test_top_shows_who_must_wait(address: str) -> None:
    quota(address, "set", "producer_byte_rate=1", "--client-id", "busy")
    port = int(address.rpartition(":")[2])
    with closing(Peer("busy", port, client_id=b"busy")) as peer:
        peer.create_topic("watched")
        assert peer.produce("watched", batch_of(b"a value"))["error_code"] == "none"
    [use] = quota(address, "top", "--json").document
    assert (use["key"], use["client_id"]) == ("producer_byte_rate", "busy")
    assert use["rate"] > use["part"]
    header, row = quota(address, "top", "--count", 1).lines
    assert header.split()[:3] == ["NODE", "USER", "CLIENT"]
    assert row.split()[:4] == ["1", "any", "busy", "producer_byte_rate"]
    assert row.endswith(" s")
