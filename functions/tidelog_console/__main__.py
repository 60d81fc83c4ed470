"""``python -m tidelog_console``: a web page that shows a cluster.

Prints ``tidelog console ready on <URL>`` on stdout when it listens. With ``--until-stdin-ends`` it
ends with the process that started it. It has no state: killing it loses nothing but logins.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.log_format import LOG_FORMATS, TEXT, configure_logging

from tidelog_console.settings import HOST, PORT, PROTOCOLS, ConsoleSettings

READY = "tidelog console ready on "
EXTRA = "this needs a web server: pip install 'tidelog[console]'"


def main(arguments: Sequence[str]) -> int:
    """Serve until interrupted; return the exit status: 2 for wrong settings."""
    given = _parser().parse_args(arguments)
    configure_logging("console", given.log_level, log_format=given.log_format)
    try:
        settings = ConsoleSettings(
            bootstrap_servers=given.bootstrap,
            security_protocol=given.security_protocol.upper(),
            ca_file=given.ca_file,
            metadata_url=given.metadata,
            objects_url=given.objects,
            node_http=tuple(given.node_http or ()),
            host=given.host,
            port=given.port,
            port_or_free=given.port_or_free,
            host_names=tuple(given.host_name or ()),
            certificate=given.certificate,
            is_behind_proxy=given.behind_proxy,
            node_config=_node_config(given.set or ()),
        )
        asyncio.run(_serve(settings, watch_stdin=given.until_stdin_ends))
    except (InvalidConfig, OSError) as error:
        problems = error.problems if isinstance(error, InvalidConfig) else [str(error)]
        for problem in problems:
            print(f"tidelog console: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _node_config(pairs: Sequence[str]) -> NodeConfig:
    """Return the settings of the nodes. Raises ``InvalidConfig``."""
    given = (pair.partition("=") for pair in pairs)
    return parse_config(NodeConfig, {name.strip(): value.strip() for name, _, value in given})


async def _serve(settings: ConsoleSettings, *, watch_stdin: bool) -> None:
    try:
        from tidelog_console.running import run_console
    except ModuleNotFoundError as absent:
        if absent.name not in ("aiohttp", "jinja2"):
            raise
        raise InvalidConfig([EXTRA]) from absent
    # Nothing is written to stdin, so it becomes readable only when the parent ends.
    stdin = sys.stdin.fileno() if watch_stdin else None
    await run_console(
        settings,
        lambda url: print(f"{READY}{url}", flush=True),  # noqa: T201
        stop_when_readable=stdin,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidelog_console", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--bootstrap", default="localhost:9092", help="nodes, host:port,…")
    parser.add_argument(
        "--security-protocol", default=PROTOCOLS[0], help=f"of the nodes: {', '.join(PROTOCOLS)}"
    )
    parser.add_argument("--ca-file", type=Path, help="PEM of the authority of nodes' certificates")
    parser.add_argument("--metadata", metavar="URL", help="metadata store, e.g. sqlite:///path")
    parser.add_argument("--objects", metavar="URL", help="object store, e.g. file:///path")
    parser.add_argument(
        "--node-http", action="append", metavar="HOST:PORT", help="a node's /readyz; repeatable"
    )
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a setting of the nodes; repeatable"
    )
    parser.add_argument("--host", default=HOST, help=f"address to listen on ({HOST})")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 for a free one ({PORT})")
    parser.add_argument(
        "--port-or-free", action="store_true", help="a free port if --port is in use"
    )
    parser.add_argument(
        "--host-name", action="append", help="a name by which browsers reach it; repeatable"
    )
    parser.add_argument("--certificate", type=Path, help="PEM of key and certificates, for HTTPS")
    parser.add_argument(
        "--behind-proxy", action="store_true", help="a proxy on this machine speaks HTTPS for it"
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=TEXT)
    parser.add_argument("--until-stdin-ends", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
