"""``tidelog up`` runs a cluster on this machine, one process per node."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.local.listen_ports import os_reason, require_free_ports
from tidelog_cli.options import parse_settings, require_choice
from tidelog_cli.output import note

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

# Modules of the extra ``node``.
NODE_MODULES = ("aiohttp", "cryptography", "obstore", "prometheus_client", "re2")
LOCK_FILE = "lock"  # of one node, in its data directory
NODE_DIRECTORIES = "node-*"
# As in Kafka's sample settings: a group of one need not wait for more members.
QUICK_START = {"group.initial.rebalance.delay.ms": "0"}
HTTP_PORT = 9644  # of the first node's probes and metrics
CONSOLE_PORT = 9640
LOOPBACK = "127.0.0.1"
CONSOLE_MODULES = ("aiohttp", "jinja2")
DEFAULT_ADDRESSES = ("127.0.0.1:9092", "localhost:9092")  # commands connect to them by themselves
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def up(
    *,
    nodes: Annotated[
        int, typer.Option(min=1, max=64, help="Number of nodes, each in its own process.")
    ] = 1,
    port: Annotated[
        int,
        typer.Option(
            min=1, max=65_535, help="Port of the first node; the others use the ports after it."
        ),
    ] = 9092,
    data_dir: Annotated[
        Path,
        typer.Option(file_okay=False, envvar="TIDELOG_DATA_DIR", help="Directory for all data."),
    ] = Path("tidelog-data"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine's.")
    ] = "127.0.0.1",
    advertised_host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Name or address under which clients reach this machine; --host by default.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Setting for every node; may be repeated."
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metadata store, if not in the data directory."),
    ] = None,
    objects: Annotated[
        str | None, typer.Option(metavar="URL", help="Object store, if not in the data directory.")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            show_default=False,
            help="Port of /livez, /readyz and /metrics of the first node; the others use the ports"
            f" after it. 0 for free ports. Default: {HTTP_PORT}, or a free one if it is in use.",
        ),
    ] = None,
    http_host: Annotated[
        str, typer.Option(help="Address of /livez, /readyz and /metrics.")
    ] = "127.0.0.1",
    no_http: Annotated[
        bool, typer.Option("--no-http", help="No /livez, /readyz and /metrics.")
    ] = False,
    http_allowed_hosts: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Further names of this machine that HTTP requests may give in Host, separated by"
            " commas; * for any.",
        ),
    ] = "",
    registry_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            show_default=False,
            help="Port of a schema registry on the first node; the others use the ports after it."
            " Default: no registry.",
        ),
    ] = None,
    registry_host: Annotated[str, typer.Option(help="Address of the schema registry.")] = LOOPBACK,
    console_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            show_default=False,
            help="Port of the console, a web page that shows the cluster to this machine. 0 for a"
            f" free one. Default: {CONSOLE_PORT}, or a free one if it is in use.",
        ),
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="No console.")] = False,
    log_level: Annotated[str, typer.Option(help=f"{', '.join(LOG_LEVELS)}.")] = "WARNING",
    log_format: Annotated[
        str, typer.Option(help="text, or json: one object a line on stderr.")
    ] = "text",
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Encrypt connections and ask clients to log in; see DATA_DIR/secure.",
        ),
    ] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM.

    Prints a line when it is ready for clients, one that says what to try, and the address of the
    console. The data directory contains everything: give the same one to start the same cluster
    again. A node that exits is restarted; if a node cannot start, the command stops the others and
    exits with status 1.
    """
    from tidelog_core.config import NodeConfig, parse_config
    from tidelog_core.log_format import JSON, LOG_FORMATS, configure_logging
    from tidelog_node.local_cluster.cluster_settings import ClusterSettings
    from tidelog_node.local_cluster.supervisor import run_cluster

    require_choice("--log-level", log_level.upper(), LOG_LEVELS)
    require_choice("--log-format", log_format.lower(), LOG_FORMATS)
    overrides = parse_settings("--set", setting or ())
    parse_config(NodeConfig, overrides)  # Raises InvalidConfig before any node starts.
    _require_node()
    # Notes are lines of the log if each of its lines has to parse.
    say = logger.warning if log_format.lower() == JSON else note
    configure_logging("cluster", log_level.upper(), log_format=log_format.lower())
    _check_hosts(host, advertised_host)
    _check_stores(metadata, objects)
    _check_data_dir(data_dir, nodes, say)
    require_free_ports(host, range(port, min(port + nodes, 65_536)), "--port")
    if http_port and not no_http:
        ports = range(http_port, min(http_port + nodes, 65_536))
        require_free_ports(http_host, ports, "--http-port")
    if registry_port is not None:
        ports = range(registry_port, min(registry_port + nodes, 65_536))
        require_free_ports(registry_host, ports, "--registry-port")
    console = None if no_console else _choose_console_port(console_port, say)
    _require_writable(data_dir)
    protocol, protection, authority = "PLAINTEXT", dict[str, str](), None
    if secure:
        ports = range(port, port + nodes)
        protocol, protection, authority = _secure(
            data_dir, advertised_host or host, ports, metadata, say=say
        )
    else:
        _warn_of_openness(data_dir, host, say)
    settings = ClusterSettings(
        data_dir=data_dir,
        node_count=nodes,
        host=host,
        port=port,
        http_port=None if no_http else HTTP_PORT if http_port is None else http_port,
        has_usual_http_port=http_port is None,
        http_host=http_host,
        http_allowed_hosts=http_allowed_hosts,
        registry_port=registry_port,
        registry_host=registry_host,
        advertised_host=advertised_host,
        metadata_store_url=metadata,
        object_store_url=objects,
        config_overrides={**QUICK_START, **protection, **overrides},
        log_level=log_level.upper(),
        log_format=log_format.lower(),
        security_protocol=protocol,
        console_port=console,
        has_usual_console_port=console_port is None,
        authority_file=authority,
    )
    registry = None
    if registry_port is not None:
        scheme = "https" if secure else "http"
        registry = f"{scheme}://{_address(registry_host, registry_port)}"
    next_step = _next_step(data_dir, advertised_host or host, port, is_secure=secure)
    status = run_cluster(
        settings,
        announce=lambda line: _announce(line, next_step, registry),
        announce_console=lambda url: print(f"console: {url}", flush=True),
    )
    if status:
        raise CommandFailed(
            "a node could not start, so the cluster was stopped; its log above says why"
        )


def _secure(
    data_dir: Path, host: str, ports: range, metadata: str | None, *, say: Say
) -> tuple[str, dict[str, str], Path]:
    """Make keys, certificates and the admin if they are missing.

    Returns the security protocol of the nodes' listeners, settings of the nodes, and the file of
    the authority that clients trust.
    """
    from tidelog_cli.local import secured

    made = secured.prepare(data_dir, host, ports)
    url = metadata or f"sqlite://{data_dir.absolute()}/metadata.db"
    asyncio.run(secured.ensure_admin(url, made.password))
    say(f"clients connect with {made.client_properties}")
    return secured.PROTOCOL, made.node_settings, made.authority_pem


def _warn_of_openness(data_dir: Path, host: str, say: Say) -> None:
    from tidelog_node.security.listeners import is_loopback

    if (data_dir / "secure").exists():
        say(f"{data_dir} was secure before, and is open now: give --secure")
    if not is_loopback(host):
        say(f"anyone who can reach {host} may read and write everything: give --secure")


def _check_hosts(host: str, advertised_host: str | None) -> None:
    """Reject addresses that clients cannot connect to, before any node starts."""
    from tidelog_node.security.listeners import is_wildcard

    if advertised_host is not None and is_wildcard(advertised_host):
        raise UsageError(f"--advertised-host {advertised_host!r} is no address to connect to")
    if is_wildcard(host) and advertised_host is None:
        raise UsageError(
            f"--host {host} listens on all addresses: say with --advertised-host under which name "
            f"or address clients reach this machine, such as {socket.gethostname()}"
        )


def _check_stores(metadata: str | None, objects: str | None) -> None:
    """Raise ``InvalidConfig`` for URLs that no store has, before any node starts."""
    from tidelog_core.metadata.location import open_metadata_store
    from tidelog_core.objects.location import parse_object_location

    if metadata is not None:
        open_metadata_store(metadata, may_be_new=True)
    if objects is not None:
        parse_object_location(objects)


def _next_step(data_dir: Path, host: str, port: int, *, is_secure: bool) -> str:
    """Return the line that says what to type next."""
    address = _address(host, port)
    options = "" if address in DEFAULT_ADDRESSES else f" -b {address}"
    tidelog = "tidelog"
    if is_secure:
        tidelog += f" --command-config {data_dir / 'secure' / 'client.properties'}"
    return f"try: echo hello | {tidelog} produce greetings{options}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _announce(line: str, next_step: str, registry: str | None) -> None:
    print(f"{line}\n{next_step}", flush=True)
    if registry is not None:
        print(f"schema registry: {registry}", flush=True)


def _require_node() -> None:
    missing = [name for name in NODE_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"the node is not installed ({', '.join(missing)} is missing): "
            "pip install 'tidelog[node]'"
        )


def _check_data_dir(data_dir: Path, node_count: int, say: Say) -> None:
    """Reject a single node's data directory; warn of logs of nodes that will not run."""
    if (data_dir / LOCK_FILE).exists():
        raise CommandFailed(
            f"{data_dir} is the data directory of a single node (python -m tidelog_node); "
            "its logs would not be found: give another --data-dir"
        )
    before = [path.name.rpartition("-")[2] for path in data_dir.glob(NODE_DIRECTORIES)]
    absent = sorted(int(text) for text in before if text.isdecimal() and int(text) > node_count)
    if absent:
        say(
            f"{data_dir} holds logs of node {', '.join(map(str, absent))} too, which will not run: "
            "their partitions are offline"
        )


def _require_writable(data_dir: Path) -> None:
    """Make the data directory if it is missing. Raises ``CommandFailed`` if it cannot be used."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=data_dir).close()
    except OSError as error:
        raise CommandFailed(
            f"cannot write to {data_dir}: {os_reason(error)}; give another --data-dir"
        ) from None


def _choose_console_port(asked: int | None, say: Say) -> int | None:
    """Return the console's port, 0 for a free one; ``None`` if its libraries are missing.

    Raises ``CommandFailed`` if a port that was asked for is in use, or cannot be served.
    """
    missing = [name for name in CONSOLE_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        words = f"{', '.join(missing)} is missing: pip install 'tidelog[console]'"
        if asked is not None:
            raise CommandFailed(f"no console: {words}")
        say(f"no console: {words}")
        return None
    if asked is None:
        return CONSOLE_PORT
    require_free_ports(LOOPBACK, [asked], "--console-port")
    return asked
