"""``tidelog debug bundle``: one file, without secrets, with the facts for finding a fault.

    version.json     Tidelog, Python, the machine, the libraries
    command.json     how the command connected
    status.json      nodes, leaders, replicas, disks, backlog
    topics.json      partitions and settings of every topic
    groups.json      groups and their states
    transactions.json, reassignments.json
    nodes/ID.json    a node's settings in force
    http/ADDRESS/    the node's /readyz, /livez and /metrics, which count its faults
    logs/NAME        the end of each log file that was named
    errors.json      what could not be asked, and why

Names of topics, groups, users and hosts stay. Records are not read.
"""

from __future__ import annotations

import asyncio
import io
import json
import platform
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.cluster_status import cluster_status
from tidelog_cli.clients import opened_admin
from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap
from tidelog_cli.output import note
from tidelog_cli.redaction import is_secret, redacted, redacted_text

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import NodeDescription

LOG_BYTES_MAX = 8 * 1024 * 1024  # of each log, from its end
PAGE_BYTES_MAX = 8 * 1024 * 1024
PAGE_SECONDS_MAX = 5.0
FIRST_HTTP_PORT = 9644
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGES = ("readyz", "livez", "metrics")
LIBRARIES = ("kio", "crc32c", "lz4", "cramjam", "typer", "rich", "cryptography", "obstore")
TOPICS_MAX = 10_000


def bundle(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            dir_okay=False,
            show_default=False,
            help="The file to write; tidelog-debug-TIME.tar.gz here by default.",
        ),
    ] = None,
    http: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A node's --http-port, to add its probes and metrics; repeat it.",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A log to add the end of; may be repeated."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write versions, settings and the cluster's state into one file, for a bug report.

    Secrets are removed: settings that are secret, passwords, tokens and keys in logs. Records are
    not read. Read the file before you pass it on: names of topics, groups and hosts stay.
    """
    path = out or Path(f"tidelog-debug-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    parts = _Parts(_secrets_of_command())
    nodes = asyncio.run(_collect(parts, bootstrap))
    for address in http or ():
        _add_pages(parts, address)
    for address in () if http else _where_up_serves(nodes):
        _add_pages(parts, address, is_guess=True)
    for one in log or ():
        parts.add_text(f"logs/{one.name}", _end_of(one))
    parts.write(path)
    print(path)
    for problem in parts.errors.values():
        note(problem)


class _Parts:
    """The files of the bundle, without secrets."""

    def __init__(self, secrets: set[str]) -> None:
        self._secrets = secrets
        self._files: dict[str, bytes] = {}
        self.errors: dict[str, str] = {}

    def add(self, name: str, document: object) -> None:
        """Add a JSON document."""
        plain = json.loads(json.dumps(document, default=str))
        self._files[name] = json.dumps(redacted(plain, self._secrets), indent=2).encode() + b"\n"

    def add_text(self, name: str, text: str) -> None:
        """Add a text."""
        self._files[name] = redacted_text(text, self._secrets).encode()

    def fail(self, name: str, error: object) -> None:
        """Note that a part is missing."""
        self.errors[name] = f"{name} is missing: {redacted_text(str(error), self._secrets)}"

    def write(self, path: Path) -> None:
        """Write the archive, readable by its owner alone."""
        import tarfile

        self.add("errors.json", self.errors)
        folder = path.name.removesuffix(".gz").removesuffix(".tar")
        path.touch(mode=0o600)
        with tarfile.open(path, "w:gz") as archive:
            for name, data in sorted(self._files.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))


async def _collect(parts: _Parts, bootstrap: str) -> Sequence[NodeDescription]:
    """Add what nodes answer; return the live nodes."""
    parts.add("version.json", _versions())
    parts.add("command.json", {"bootstrap": bootstrap, "settings": _command_settings()})
    asked: dict[str, Callable[[Admin], Awaitable[object]]] = {
        "status.json": cluster_status,
        "topics.json": _topics,
        "groups.json": _groups,
        "transactions.json": _transactions,
        "reassignments.json": _reassignments,
    }
    from tidelog.errors import TidelogError

    nodes: Sequence[NodeDescription] = ()
    try:
        async with opened_admin(bootstrap) as admin:
            nodes = (await admin.describe_cluster()).nodes
            for node in nodes:
                asked[f"nodes/{node.node_id}.json"] = _settings_of(node.node_id)
            for name, ask in asked.items():
                try:
                    parts.add(name, await ask(admin))
                except TidelogError as error:
                    parts.fail(name, error)
    except (TidelogError, CommandFailed) as error:
        parts.fail("the cluster's state", error)
    return nodes


def _where_up_serves(nodes: Sequence[NodeDescription]) -> list[str]:
    """Return the addresses where ``tidelog up`` on this machine serves nodes' pages by default."""
    return [
        f"{node.host}:{FIRST_HTTP_PORT + node.node_id - 1}"
        for node in nodes
        if node.host in LOOPBACK
    ]


def _versions() -> dict[str, object]:
    from importlib.metadata import distributions

    from tidelog_cli.version import version_line

    found = {one.name.lower(): one.version for one in distributions()}
    return {
        "tidelog": version_line(),
        "platform": platform.platform(),
        "libraries": {name: found[name] for name in LIBRARIES if name in found},
    }


def _command_settings() -> dict[str, str]:
    return {name: given.value for name, given in connection().settings.items()}


def _secrets_of_command() -> set[str]:
    """Return the secrets, those too that the settings name the files of."""
    settings = {**_command_settings(), **connection().kafka_options()}
    return {value for name, value in settings.items() if is_secret(name)}


async def _topics(admin: Admin) -> list[dict[str, Any]]:
    names = [one.name for one in await admin.list_topics(include_internal=True)]
    described = await admin.describe_topics(names[:TOPICS_MAX])
    settings = await admin.describe_several_configs("topic", described)
    return [
        {
            **asdict(topic),
            "settings": {
                name: entry.value
                for name, entry in settings[topic.name].items()
                if entry.source == "dynamic_topic"
            },
        }
        for topic in described.values()
    ]


async def _groups(admin: Admin) -> list[dict[str, Any]]:
    return [asdict(one) for one in await admin.list_groups()]


async def _transactions(admin: Admin) -> list[dict[str, Any]]:
    return [asdict(one) for one in await admin.list_transactions()]


async def _reassignments(admin: Admin) -> dict[str, Any]:
    return {str(name): asdict(move) for name, move in (await admin.list_reassignments()).items()}


def _settings_of(node_id: int) -> Callable[[Admin], Awaitable[object]]:
    async def ask(admin: Admin) -> list[dict[str, Any]]:
        found = await admin.describe_configs("node", node_id)
        return [
            {"name": e.name, "value": None if e.is_sensitive else e.value, "source": e.source}
            for e in found.values()
        ]

    return ask


def _add_pages(parts: _Parts, address: str, *, is_guess: bool = False) -> None:
    import urllib.error
    import urllib.request

    for page in PAGES:
        name = f"http/{address}/{page}"
        try:
            with urllib.request.urlopen(
                f"http://{address}/{page}", timeout=PAGE_SECONDS_MAX
            ) as answer:
                text = answer.read(PAGE_BYTES_MAX)
        except urllib.error.HTTPError as error:  # With 503 /readyz names the fault.
            text = b"%d\n" % error.code + error.read(PAGE_BYTES_MAX)
        except (OSError, ValueError) as error:
            if is_guess:
                return
            parts.fail(name, error)
            continue
        parts.add_text(name, text.decode(errors="replace"))


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX).decode(errors="replace")
