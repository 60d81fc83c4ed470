"""stdin, stdout and stderr that are closed, full or of another encoding, and arguments likewise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import COMMAND, SECONDS_MAX, called, environment

NOT_UTF_8 = b"\xff"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with contexts of its own, in which Python keeps output until it has enough."""
    file = tmp_path / "config.toml"
    file.touch(0o600)
    kept = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    return {**kept, "TIDELOG_CONFIG": str(file)}


def _shell(line: str, environ: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", line.replace("tidelog", COMMAND)],
        env=environ,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("command", ["context list", "context list --json", "--help"])
def test_an_output_that_is_full_is_one_line_and_status_1(
    command: str, environ: dict[str, str]
) -> None:
    done = _shell(f"tidelog {command} > /dev/full", environ)
    assert (done.returncode, done.stderr) == (1, b"tidelog: No space left on device\n")


def test_a_reader_that_is_gone_ends_the_command_in_silence(environ: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [COMMAND, "context", "list"],
            env=environ,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("output", ["> /dev/full", "| true"], ids=["full", "gone"])
def test_records_of_a_group_that_were_not_printed_are_read_again(
    bootstrap: str, environ: dict[str, str], output: str
) -> None:
    """They were committed, and no member of the group ever saw them."""
    topic = f"unprinted-{len(output)}"
    called("produce", topic, bootstrap=bootstrap, given=b"1\n2\n3\n")
    line = (
        f"tidelog consume {topic} -b {bootstrap} --group {topic} --from-beginning --max-messages 3"
        " --timeout 60"
    )
    # The reader has gone before there is anything to read.
    _shell(f"(sleep 1; {line}) {output}", environ)
    done = _shell(line, environ)
    assert (done.returncode, done.stdout) == (0, b"1\n2\n3\n")


def test_a_closed_stdin_is_an_empty_one(bootstrap: str, environ: dict[str, str]) -> None:
    called("topic", "create", "closed-stdin", bootstrap=bootstrap)
    done = _shell(f"tidelog produce closed-stdin -b {bootstrap} <&-", environ)
    assert (done.returncode, done.stderr) == (0, b"tidelog: 0 records written to closed-stdin\n")


def test_a_closed_stderr_takes_nothing_from_stdout(bootstrap: str, environ: dict[str, str]) -> None:
    called("produce", "closed-stderr", bootstrap=bootstrap, given=b"one\n")
    line = f"tidelog consume closed-stderr -b {bootstrap} --from-beginning --max-messages 1 2>&-"
    done = _shell(line, environ)
    assert (done.returncode, done.stdout) == (0, b"one\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (b"produce", b"t", b"--header", b"h=" + NOT_UTF_8),
        (b"consume", b"t", b"--grep", NOT_UTF_8),
        (b"consume", b"t", b"--format", b"%s" + NOT_UTF_8),
        (b"schema", b"get", NOT_UTF_8),
    ],
    ids=lambda arguments: arguments[0].decode(),
)
def test_an_argument_that_is_not_utf_8_is_one_line_and_status_2(
    arguments: tuple[bytes, ...], environ: dict[str, str]
) -> None:
    done = subprocess.run(
        [COMMAND.encode(), *arguments],
        env={**environ, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(b"tidelog: an argument is not UTF-8: ")
    assert b"\\udcff" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_terminal_without_utf_8_gets_escapes(environ: dict[str, str]) -> None:
    given = [COMMAND, "context", "add", "a", "-b", "h:1", "--set", "sasl.username=Ж"]
    subprocess.run(given, env=environ, timeout=SECONDS_MAX, check=True)
    done = _shell("tidelog context list", {**environ, "PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u0416" in done.stdout
