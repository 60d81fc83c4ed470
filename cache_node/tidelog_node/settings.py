"""Parses the settings of a node process: arguments, then the environment, then defaults.

``NodeSettings`` has the settings that a process needs before it can open the metadata store. The
settings that clients see and change are in ``NodeConfig``. Each of them can be given too, as
``--set num.partitions=3`` or ``TIDELOG_CONFIG_NUM_PARTITIONS=3``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.config_environment import overrides_from_environment
from tidelog_core.errors import InvalidConfig
from tidelog_core.listener_settings import split_listener_overrides
from tidelog_core.log_format import LOG_FORMATS, TEXT
from tidelog_core.metadata.endpoints import PORT_MAX

from tidelog_node.security.listeners import AddressArguments, Listeners, parse_listeners

ENVIRONMENT_PREFIX = "TIDELOG_"
BROKER_ID_MAX = 2**31 - 1
DEFAULT_DATA_DIR = "tidelog-data"
HTTP_HOST = "127.0.0.1"
HTTP_ON = ", http on "  # between the two addresses in the line of a node that is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The settings of one node process. Only ``parse_settings`` and tests make it."""

    broker_id: int = 1  # unique in the cluster, and the same after a restart
    listeners: Listeners = field(default_factory=Listeners)
    data_dir: Path = Path(DEFAULT_DATA_DIR)  # of the logs; each node has its own
    metadata_store_url: str = ""  # default: SQLite in the data directory
    object_store_url: str = ""  # default: a folder in the data directory
    rack: str | None = None  # the availability zone, for rack-aware clients
    # Of NodeConfig. Without the settings of single listeners, which are parsed already.
    config_overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    log_level: str = "INFO"  # of the process's log on stderr
    log_format: str = TEXT  # of its lines
    http_host: str = HTTP_HOST  # of probes and metrics
    http_port: int | None = None  # None: there are no probes and metrics; 0: a free port
    http_port_or_free: bool = False  # a free port if that one is in use
    # Further names that requests to the two may give in Host; "*": any.
    http_allowed_hosts: tuple[str, ...] = ()
    registry_host: str = HTTP_HOST  # of the schema registry
    registry_port: int | None = None  # None: there is no registry; 0: a free port
    stops_with_parent: bool = False  # whether the end of stdin stops the node, as SIGTERM does

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names that HTTP requests may give in ``Host`` beside IP addresses."""
        advertised = (listener.advertised_host for listener in self.listeners.clients)
        return (*self.http_allowed_hosts, *advertised, self.http_host, self.registry_host)


def parse_settings(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> NodeSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    given = vars(_parser().parse_args(arguments))
    problems: list[str] = []
    texts = _Texts(given, environment, problems)
    addresses = AddressArguments(
        host=texts.text("host"),
        port=texts.number("port", 0, PORT_MAX),
        advertised_host=texts.text("advertised_host"),
        advertised_port=texts.number("advertised_port", 1, PORT_MAX),
        inter_broker_port=texts.number("inter_broker_port", 0, PORT_MAX),
    )
    values = _parse_process(texts)
    values["stops_with_parent"] = given["stop_with_parent"]
    values["http_port_or_free"] = given["http_port_or_free"]
    overrides = _parse_overrides(given["set"] or [], environment, problems)
    values["config_overrides"], of_listeners = split_listener_overrides(overrides)
    try:
        config = parse_config(NodeConfig, values["config_overrides"])
        values["listeners"] = parse_listeners(config, of_listeners, addresses)
        if config.log_diskless_enable and not config.diskless_storage_system_enable:
            problems.append("log.diskless.enable=true needs diskless.storage.system.enable=true")
    except InvalidConfig as error:
        problems.extend(error.problems)
    if problems:
        raise InvalidConfig(problems)
    return NodeSettings(**values)


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class _Texts:
    """The settings as they were given: by an argument, or else in the environment."""

    def __init__(
        self, given: Mapping[str, Any], environment: Mapping[str, str], problems: list[str]
    ) -> None:
        self._given = given
        self._environment = environment
        self._problems = problems

    def text(self, name: str) -> str | None:
        """Return the setting, ``None`` if it was not given or is empty."""
        value: str | None = self._given[name]
        if value is None:
            value = self._environment.get(ENVIRONMENT_PREFIX + name.upper())
        return value or None

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return the number; note a problem if it is outside ``[low, high]``."""
        text = self.text(name)
        return None if text is None else _parse_number(name, text, low, high, self._problems)

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        """Return one of the words; note a problem if it is another one."""
        text = self.text(name)
        if text is None:
            return default
        found = next((word for word in allowed if word.lower() == text.lower()), None)
        if found is None:
            self._problems.append(f"{name} {text!r} must be one of {', '.join(allowed)}")
        return found or default


def _parse_process(texts: _Texts) -> dict[str, Any]:
    """Return the settings that are not part of ``NodeConfig``."""
    data_dir = Path(texts.text("data_dir") or DEFAULT_DATA_DIR).absolute()
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "metadata_store_url": texts.text("metadata_store") or f"sqlite://{data_dir}/metadata.db",
        "object_store_url": texts.text("object_store") or f"file://{data_dir}/objects",
        "rack": texts.text("rack"),
        "http_host": texts.text("http_host") or HTTP_HOST,
        "http_port": texts.number("http_port", 0, PORT_MAX),
        "http_allowed_hosts": _parse_names(texts.text("http_allowed_hosts") or ""),
        "registry_host": texts.text("registry_host") or HTTP_HOST,
        "registry_port": texts.number("registry_port", 0, PORT_MAX),
        "log_level": texts.one_of("log_level", LOG_LEVELS, "INFO"),
        "log_format": texts.one_of("log_format", LOG_FORMATS, TEXT),
    }
    broker_id = texts.number("broker_id", 0, BROKER_ID_MAX)
    if broker_id is not None:
        values["broker_id"] = broker_id
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidelog_node", description="Run one Tidelog node.", allow_abbrev=False
    )
    for option, text in (
        ("--broker-id", "unique number of this node in its cluster (1)"),
        ("--host", "address to listen on (127.0.0.1)"),
        ("--port", "port to listen on, 0 for a free port (9092)"),
        ("--advertised-host", "host that clients connect to (the host)"),
        ("--advertised-port", "port that clients connect to (the port)"),
        ("--inter-broker-port", "port for the other nodes, 0 for a free port (0)"),
        ("--data-dir", "directory of this node's logs (./tidelog-data)"),
        ("--metadata-store", "sqlite:///path or dynamodb://table (SQLite in the data directory)"),
        ("--object-store", "file:///path, s3://bucket/prefix or memory: (in the data directory)"),
        ("--rack", "rack or availability zone of this node"),
        ("--http-port", "port of /livez, /readyz and /metrics, 0 for a free port (off)"),
        ("--http-host", "address of /livez, /readyz and /metrics (127.0.0.1)"),
        (
            "--http-allowed-hosts",
            "further names of this node in HTTP requests, or * for any (none)",
        ),
        ("--registry-port", "port of the schema registry, 0 for a free port (off)"),
        ("--registry-host", "address of the schema registry (127.0.0.1)"),
        ("--log-level", "DEBUG, INFO, WARNING or ERROR (INFO)"),
        ("--log-format", "text, or json: one object a line (text)"),
    ):
        parser.add_argument(option, help=text)
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a node setting; may be repeated"
    )
    parser.add_argument(
        "--http-port-or-free",
        action="store_true",
        help="take a free port if --http-port is in use; for supervisors",
    )
    parser.add_argument(
        "--stop-with-parent", action="store_true", help="stop when stdin ends; for supervisors"
    )
    return parser


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().lower()))


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
    """Return the overrides by Kafka's name; their values are not parsed."""
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
    return overrides
