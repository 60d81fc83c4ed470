"""Every command of ``docs/tutorial.md`` is run, and prints what the page says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.places import ROOT
from tools.ports import free_port

PAGE = ROOT / "docs" / "tutorial.md"
PROGRAM, SPARK = "## From a program", "## Read it with Spark"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`(\w+\.py)`:\s*$")
LATER = "  # after some seconds"
SECONDS_MAX = 60.0


class Reader:
    """Does what the page says, in a folder, with another port than the page's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = str(free_port())
        programs = ROOT / ".venv" / "bin"
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "TIDELOG_BOOTSTRAP_SERVERS": f"localhost:{self._port}",
        }
        self._cluster: subprocess.Popen[str] | None = None

    def follow(self, text: str) -> int:
        """Save the programs and run the commands; return the number of commands."""
        count = 0
        for block in BLOCK.finditer(text):
            kind, content = block[1], block[2].replace("localhost:9092", f"localhost:{self._port}")
            if kind == "python":
                name = NAME.search(text[: block.start()].rstrip())
                assert name is not None, f"nothing says how to save {content}"
                (self._folder / name[1]).write_text(content)
                continue
            for command, output in _commands(content):
                self._run(command, output)
                count += 1
        return count

    def stop(self) -> None:
        """End the cluster, as Ctrl-C does."""
        if self._cluster is not None:
            self._cluster.send_signal(signal.SIGINT)
            with self._cluster as ended:
                ended.communicate()
            assert ended.returncode == 0
            self._cluster = None

    def _run(self, command: str, expected: str) -> None:
        if command == "tidelog up":
            self._start(expected)
            return
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            done = subprocess.run(
                ["bash", "-c", command.removesuffix(LATER)],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            shown = "\n".join(line for line in done.stdout.splitlines() if _counts(line, expected))
            if _matches(shown, expected):
                assert done.returncode == 0, shown
                return
            if not command.endswith(LATER) or time.monotonic() > deadline:
                pytest.fail(f"$ {command}\nprinted:\n{shown}\nthe page has:\n{expected}")
            time.sleep(0.2)

    def _start(self, expected: str) -> None:
        command = ["tidelog", "up", "--port", self._port, "--http-port", "0", "--console-port", "0"]
        self._cluster = subprocess.Popen(
            command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE, text=True
        )
        assert self._cluster.stdout is not None
        for line in expected.splitlines():
            printed = self._cluster.stdout.readline().strip()
            wanted = line.replace("9644", "…").replace("9640", "…").replace("9092", self._port)
            # The command names the address if it is not the usual one.
            printed = printed.removesuffix(f" -b 127.0.0.1:{self._port}")
            assert _matches(printed, wanted), (printed, wanted)


def _commands(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with the output behind it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.strip()


def _counts(line: str, expected: str) -> bool:
    """Return whether a line belongs to the output; notes about progress need not be on the page."""
    return not line.startswith("tidelog: ") or "tidelog: " in expected


def _matches(shown: str, expected: str) -> bool:
    """Return whether the output is the expected one, in which … stands for any text of a line.

    Numbers of bytes, which the page leaves out, may move the columns of a table.
    """
    pattern = re.escape(" ".join(expected.split(" "))).replace("…", "[^\n]*?")
    pattern = re.sub(r"(\\ )+", r" +", pattern)
    return re.fullmatch(pattern, shown.strip()) is not None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


def test_the_first_steps_of_the_page_are_true(reader: Reader) -> None:
    assert reader.follow(PAGE.read_text().partition(PROGRAM)[0]) == 6


@pytest.mark.slow
def test_the_whole_page_is_true(reader: Reader) -> None:
    before, _, spark = PAGE.read_text().partition(SPARK)
    reader.follow(before)
    reader.stop()
    assert reader.follow(spark) == 1


def test_an_output_that_is_not_the_pages_is_found(reader: Reader) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"the page has:\nhello$"):
        reader.follow("```console\n$ echo good bye\nhello\n```\n")
