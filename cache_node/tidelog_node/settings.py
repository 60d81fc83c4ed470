"""Parses the settings of a node process: arguments, environment, defaults, in this order.

Everything that a process must know before it can reach the metadata store is here; what
clients can see and change is in ``NodeConfig``, of which single settings can be given
too (``--set num.partitions=3`` or ``TIDELOG_CONFIG_NUM_PARTITIONS=3``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.config_environment import overrides_from_environment
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata.endpoints import PORT_MAX

ENVIRONMENT_PREFIX = "TIDELOG_"
BROKER_ID_MAX = 2**31 - 1
DEFAULT_DATA_DIR = "tidelog-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node process. ``parse_settings`` is the only maker outside of tests."""

    broker_id: int = 1  # unique in the cluster, the same after a restart
    host: str = "127.0.0.1"  # listen address; a laptop's node is not for the network
    port: int = 9092  # 0: one that is free
    advertised_host: str | None = None  # what clients connect to; None: the host
    advertised_port: int | None = None  # None: the port
    inter_broker_port: int = 0  # where other nodes connect, at the same hosts; 0: one that is free
    data_dir: Path = Path(DEFAULT_DATA_DIR)  # logs; one node's own
    metadata_store_url: str = ""  # default: SQLite in the data directory
    object_store_url: str = ""  # default: a folder in the data directory
    rack: str | None = None  # availability zone, for clients that care
    config_overrides: Mapping[str, str] = field(default_factory=dict)  # of NodeConfig
    log_level: str = "INFO"  # of the process's own log on stderr
    stops_with_parent: bool = False  # the end of stdin stops the node, as SIGTERM does

    @property
    def client_host(self) -> str:
        """The host that clients are told."""
        return self.advertised_host if self.advertised_host is not None else self.host


def parse_settings(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> NodeSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    given = vars(_parser().parse_args(arguments))
    problems: list[str] = []
    values: dict[str, object] = {}

    def take(name: str) -> str | None:
        value = given[name]
        if value is None:
            value = environment.get(ENVIRONMENT_PREFIX + name.upper())
        return value if value != "" else None

    for name, low, high in (
        ("broker_id", 0, BROKER_ID_MAX),
        ("port", 0, PORT_MAX),
        ("advertised_port", 1, PORT_MAX),
        ("inter_broker_port", 0, PORT_MAX),
    ):
        text = take(name)
        if text is not None:
            number = _parse_number(name, text, low, high, problems)
            if number is not None:
                values[name] = number
    for name in ("host", "advertised_host", "rack"):
        text = take(name)
        if text is not None:
            values[name] = text
    level = take("log_level")
    if level is not None:
        if level.upper() not in LOG_LEVELS:
            problems.append(f"log_level {level!r} must be one of {', '.join(LOG_LEVELS)}")
        values["log_level"] = level.upper()
    data_dir = Path(take("data_dir") or DEFAULT_DATA_DIR).absolute()
    values["data_dir"] = data_dir
    values["metadata_store_url"] = take("metadata_store") or f"sqlite://{data_dir}/metadata.db"
    values["object_store_url"] = take("object_store") or f"file://{data_dir}/objects"
    values["config_overrides"] = _parse_overrides(given["set"] or [], environment, problems)
    values["stops_with_parent"] = given["stop_with_parent"]
    if "advertised_host" not in values and _is_wildcard(str(values.get("host", ""))):
        problems.append(
            f"advertised_host is required with host {values['host']!r}, which no client can reach"
        )
    if problems:
        raise InvalidConfig(problems)
    return NodeSettings(**values)  # type: ignore[arg-type]


def _is_wildcard(host: str) -> bool:
    """Return whether the address means all of the machine's addresses, however written."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            return not any(socket.inet_pton(family, host))
    with contextlib.suppress(OSError):
        return not any(socket.inet_aton(host))  # «0» is one too
    return False


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidelog_node", description="Run one Tidelog node.", allow_abbrev=False
    )
    for option, text in (
        ("--broker-id", "unique number of this node in its cluster (1)"),
        ("--host", "address to listen on (127.0.0.1)"),
        ("--port", "port to listen on, 0 for a free one (9092)"),
        ("--advertised-host", "host that clients are told (the host)"),
        ("--advertised-port", "port that clients are told (the port)"),
        ("--inter-broker-port", "port for the other nodes, 0 for a free one (0)"),
        ("--data-dir", "directory of this node's logs (./tidelog-data)"),
        ("--metadata-store", "sqlite:///path or dynamodb://table (SQLite in the data directory)"),
        ("--object-store", "file:///path, s3://bucket/prefix or memory: (in the data directory)"),
        ("--rack", "rack or availability zone of this node"),
        ("--log-level", "DEBUG, INFO, WARNING or ERROR (INFO)"),
    ):
        parser.add_argument(option, help=text)
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a node setting; may be repeated"
    )
    parser.add_argument(
        "--stop-with-parent", action="store_true", help="stop when stdin ends; for supervisors"
    )
    return parser


def _parse_number(name: str, text: str, low: int, high: int, problems: list[str]) -> int | None:
    try:
        number = int(text)
    except ValueError:
        problems.append(f"{name} {text!r} must be a whole number")
        return None
    if not low <= number <= high:
        problems.append(f"{name} {number} must be from {low} to {high}")
        return None
    return number


def _parse_overrides(
    given: Sequence[str], environment: Mapping[str, str], problems: list[str]
) -> dict[str, str]:
    """Return the overrides by Kafka name, with every wrong one reported."""
    overrides: dict[str, str] = {}
    try:
        overrides = overrides_from_environment(environment)
    except InvalidConfig as error:
        problems.extend(error.problems)
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            problems.append(f"--set {pair!r} must be NAME=VALUE")
        else:
            overrides[name.strip()] = value.strip()
    try:
        parse_config(NodeConfig, overrides)
    except InvalidConfig as error:
        problems.extend(error.problems)
    return overrides
