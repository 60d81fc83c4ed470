"""Arguments over environment over defaults, and every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_node.settings import parse_settings


def test_defaults_make_a_node_for_one_machine() -> None:
    settings = parse_settings([], {})
    (listener,) = settings.listeners.clients
    assert settings.broker_id == 1
    assert (listener.name, listener.host, listener.port) == ("PLAINTEXT", "127.0.0.1", 9092)
    assert (settings.listeners.nodes.name, settings.listeners.nodes.port) == ("NODE", 0)
    assert settings.data_dir == Path("tidelog-data").absolute()
    assert settings.metadata_store_url == f"sqlite://{settings.data_dir}/metadata.db"
    assert settings.object_store_url == f"file://{settings.data_dir}/objects"


def test_an_argument_beats_the_environment_which_beats_the_default() -> None:
    environment = {
        "TIDELOG_PORT": "19092",
        "TIDELOG_BROKER_ID": "4",
        "TIDELOG_CONFIG_NUM_PARTITIONS": "3",
        "TIDELOG_ADVERTISED_HOST": "node.example",
    }
    settings = parse_settings(["--port", "29092", "--set", "message.max.bytes=1000"], environment)
    (listener,) = settings.listeners.clients
    assert (listener.port, settings.broker_id) == (29_092, 4)
    assert listener.advertised_host == settings.listeners.nodes.advertised_host == "node.example"
    assert settings.config_overrides == {"num.partitions": "3", "message.max.bytes": "1000"}


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_settings(
            ["--port", "99999", "--broker-id", "x", "--set", "nope=1", "--set", "bare"],
            {"TIDELOG_CONFIG_WRONG": "1", "TIDELOG_LOG_LEVEL": "LOUD"},
        )
    text = str(raised.value)
    for part in ("99999", "'x'", "'nope'", "'bare'", "TIDELOG_CONFIG_WRONG", "'LOUD'"):
        assert part in text


def test_a_node_on_every_address_must_say_where_it_is_reached() -> None:
    with pytest.raises(InvalidConfig, match="advertised_host is required"):
        parse_settings(["--host", "0.0.0.0"], {})
    arguments = ["--host", "0.0.0.0", "--advertised-host", "node.example"]
    (listener,) = parse_settings(arguments, {}).listeners.clients
    assert listener.advertised_host == "node.example"


def test_new_topics_cannot_be_diskless_by_default_where_none_may_be() -> None:
    arguments = [
        "--set",
        "log.diskless.enable=true",
        "--set",
        "diskless.storage.system.enable=false",
    ]
    with pytest.raises(InvalidConfig, match=r"needs diskless\.storage\.system\.enable=true"):
        parse_settings(arguments, {})
    assert parse_settings(arguments[:2], {}).config_overrides == {"log.diskless.enable": "true"}
