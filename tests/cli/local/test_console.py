"""``tidelog console``: the page of a cluster that options or settings name."""

from __future__ import annotations

import select
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.command import COMMAND, called, environment, environment_without
from tests.support.console import Browser

SECONDS_MAX = 60


def test_a_page_is_served_though_no_node_answers(tmp_path: Path) -> None:
    """The page says that the cluster does not answer, and a login in the settings is not used."""
    settings = tmp_path / "client.properties"
    settings.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=canary\n"
    )
    with subprocess.Popen(
        [COMMAND, "--command-config", str(settings), "console", "--port", "0"],
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
            line = process.stdout.readline().decode() if ready else ""
            assert line.startswith("console: http://127.0.0.1:")
            page = Browser(line.strip().rpartition("/")[2]).get("/")
            assert (page.status, page.headers["location"]) == (303, "/login")
        finally:
            process.terminate()
        assert process.wait(SECONDS_MAX) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), "nobody has to log in"),
        (("--data-dir", "/no/such/folder"), "no metadata store at /no/such/folder"),
        (("--set", "no.such=1"), "'no.such'"),
    ],
    ids=["host", "folder", "setting"],
)
def test_wrong_options_are_named(options: tuple[str, ...], words: str) -> None:
    assert words in called("console", *options, status=None).errors


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = called("console", "--port", port, status=1)
    assert (
        f"cannot listen on 127.0.0.1, port {port}: Address already in use; give another --port"
        in outcome.errors
    )


def test_missing_libraries_are_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "console"],
        env=environment_without(tmp_path / "hidden", "jinja2"),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "tidelog: the console is not installed (jinja2 is missing): pip install 'tidelog[console]'\n"
    )
