"""What people type and what they are told: ``transcript.txt``, against two real nodes."""

from __future__ import annotations

import re
import shlex
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import Template

import pytest
from tidelog_cli import reaching

from tests.support.command import called
from tests.support.local_admin import local_admin
from tests.support.node_process import NodeProcess
from tools.ports import free_port

TRANSCRIPT = Path(__file__).with_name("transcript.txt")
COMMANDS_MIN = 60
_INPUT = re.compile(r"echo ('.*?') \| (.*)")
_STATUS = re.compile(r"\[(\d+|…)\] (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it prints."""

    command: str
    status: str
    said: list[str]


def sections() -> dict[str, list[Step]]:
    """Return the transcript's steps by the title of their section."""
    found: dict[str, list[Step]] = {}
    for part in TRANSCRIPT.read_text().split("\n== ")[1:]:
        title, _, body = part.partition("\n")
        steps = found[title] = []
        for text in body.strip().split("\n$ "):
            command, _, said = text.removeprefix("$ ").strip("\n").partition("\n")
            status = _STATUS.fullmatch(said)
            steps.append(
                Step(
                    command,
                    "0" if status is None else status[1],
                    (said if status is None else status[2]).splitlines(),
                )
            )
    return found


SECTIONS = sections()


def pattern(line: str) -> str:
    """Return the regular expression of a line; widths of columns do not count."""
    return ".*".join(re.escape(part) for part in one_space(line).split("…"))


def one_space(line: str) -> str:
    return re.sub(" +", " ", line)


class Quiet(BaseHTTPRequestHandler):
    """An HTTP server's answers, without a log of them."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class QuietServer(ThreadingHTTPServer):
    """A server that does not mind clients that go away."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def http_address() -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def admin_url(cli_cluster: tuple[NodeProcess, ...]) -> Iterator[str]:
    node = cli_cluster[0]
    with local_admin(str(node.metadata_store), str(node.object_store)) as api:
        yield api.url


@pytest.fixture
def names(
    cli_cluster: tuple[NodeProcess, ...],
    http_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, str]]:
    """What the transcript's variables stand for."""
    node = cli_cluster[0]
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", node.address)
    big = tmp_path / "big"
    big.write_bytes(b"x" * 3_000_000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield {
            "REFUSED": f"127.0.0.1:{free_port()}",
            "HTTP": http_address,
            "STORES": f"--metadata {node.metadata_store} --objects {node.object_store}",
            "METADATA": f"--metadata {node.metadata_store}",
            "BUCKET": str(node.object_store),
            "BIG": str(big),
            "NEW": str(tmp_path / "new"),
            "NODE_DIR": str(node.data_dir),
            "TAKEN": str(taken.getsockname()[1]),
        }


def test_transcript_is_long_enough() -> None:
    assert sum(map(len, SECTIONS.values())) >= COMMANDS_MIN


@pytest.mark.parametrize("title", SECTIONS)
def test_people_are_told(
    title: str,
    names: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if any("$ADMIN" in step.command for step in SECTIONS[title]):
        names["ADMIN"] = request.getfixturevalue("admin_url")
    is_waiting = title == "where no node is"
    if is_waiting:
        for name, seconds in (("NOTE", 0.05), ("ASK", 0.1), ("REFUSED", 0.5)):
            monkeypatch.setattr(reaching, f"{name}_SECONDS", seconds)
        monkeypatch.setattr(reaching, "ANSWER_SECONDS_MAX", 5.0)
    for step in SECTIONS[title]:
        text, given = Template(step.command).substitute(names), b""
        if (piped := _INPUT.fullmatch(text)) is not None:
            given, text = shlex.split(piped[1])[0].encode() + b"\n", piped[2]
        program, *arguments = shlex.split(text)
        assert program == "tidelog"
        outcome = called(*arguments, given=given, status=None)
        printed = [
            line
            for line in [*outcome.lines, *outcome.errors.splitlines()]
            if is_waiting or not line.startswith("tidelog: waiting for")  # The machine is busy.
        ]
        shown = f"$ {step.command}\n[{outcome.status}]\n" + "\n".join(printed)
        assert step.status in ("…", str(outcome.status)), shown
        expected = [pattern(Template(line).substitute(names)) for line in step.said]
        assert len(printed) == len(expected), shown
        for line, wanted in zip(printed, expected, strict=True):
            assert re.fullmatch(wanted, one_space(line)), f"{shown}\n-- {line!r} is not {wanted!r}"
        assert "None" not in outcome.errors
        assert "Traceback" not in outcome.errors
