"""Does what a page says, in a folder, beside a cluster that the page is about."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.docs.shell_blocks import blocks_of
from tests.support.interruptible import be_interruptible
from tools import kcat
from tools.places import ROOT

READY_SECONDS_MAX = 60.0
COMMAND_SECONDS_MAX = 600.0  # a job of Spark, on a busy machine
_SERVERS = ("tidelog up", "python -m tidelog_functions.admin.local")
_SCHEDULE = " --every "  # a job with it runs until it is stopped
_PASSWORD = "correct horse battery staple\n"  # at every prompt


class PageReader:
    """Runs a page's commands by bash, one after the other, with the words that fit this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = folder / "programs"
        programs.mkdir()
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("TIDELOG_")},
            "PATH": os.pathsep.join(
                [str(programs), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]
            ),
            "XDG_CONFIG_HOME": str(folder / "settings"),
            "HOME": str(folder),
        }
        if found := kcat.command():
            script = programs / "kcat"
            library_path = found[1].get("LD_LIBRARY_PATH", "")
            script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={library_path} exec {found[0]} "$@"\n')
            script.chmod(0o755)
        self.words: list[tuple[str, str]] = []  # of the page, and what they are here
        self.before: list[tuple[str, Callable[[], None]]] = []  # once, at the command's beginning
        self.found: list[tuple[str, str]] = []  # a word, and the pattern of it in an output
        self.server_options: Mapping[str, str] = {}
        self._servers: list[subprocess.Popen[str]] = []

    def follow(self, page: Path) -> int:
        """Run the commands of the page; return their number."""
        count = 0
        for block in blocks_of(page):
            if not block.reason:
                for command, expected in block.commands:
                    output = self.run(command, block.where)
                    if expected is not None:
                        assert is_like(output, expected), f"{block.where}: {command}\n{output}"
                    count += 1
        return count

    def run(self, command: str, where: str) -> str:
        """Run a command, or start a server; return the output. Fails if its status is not 0."""
        for beginning, prepare in tuple(self.before):
            if command.startswith(beginning):
                self.before.remove((beginning, prepare))
                prepare()
        for word, here in self.words:
            command = command.replace(word, here)
        for beginning in _SERVERS:
            if command.startswith(beginning):
                return self._start(f"{command} {self.server_options.get(beginning, '')}", where)
        if _SCHEDULE in command:
            return self._start(command, where)
        status, output = self._call(command)
        print(f"{where} $ {command}\n{output}")
        assert status == 0, f"{where}: {command}: {status}\n{output}"
        for word, pattern in tuple(self.found):
            if match := re.search(pattern, output):
                self.found.remove((word, pattern))
                # What precedes the last part of a path stays: /fd/N becomes /fd/10.
                self.words.append((word, word[: word.rfind("/") + 1] + match[1]))
        return output

    def stop(self) -> None:
        """End the servers, as Ctrl-C does."""
        for server in self._servers:
            os.killpg(server.pid, signal.SIGINT)
            with server:
                server.communicate(timeout=READY_SECONDS_MAX)
        self._servers.clear()

    def _call(self, command: str) -> tuple[int, str]:
        with subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(_PASSWORD, timeout=COMMAND_SECONDS_MAX)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # also what bash has started
                raise
        return process.returncode, output

    def _start(self, command: str, where: str) -> str:
        errors = self.folder / f"errors-{len(self._servers)}"
        with errors.open("w") as stderr:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._servers.append(server)
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], READY_SECONDS_MAX)
        line = server.stdout.readline() if ready else ""
        assert line, f"{where}: {command}: it says nothing\n{errors.read_text()}"
        print(f"{where} $ {command}\n{line}")
        return line


def is_like(output: str, expected: str) -> bool:
    """Return whether the output is the page's, but for numbers and the widths of columns.

    … stands for any text of a line; a line of it alone, for any lines.
    """
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
            continue
        escaped = re.sub(r"\d[\d.,]*", "0", " ".join(line.split()))
        pattern += re.escape(escaped).replace("…", ".*?").replace(r"\ ", " ") + r"\n"
    lines = [re.sub(r"\d[\d.,]*", "0", " ".join(line.split())) for line in output.splitlines()]
    shown = [line for line in lines if not line.startswith("tidelog: ")]  # of the progress
    return re.fullmatch(pattern.strip("\n"), "\n".join(shown) + "\n") is not None


@contextmanager
def reading(folder: Path) -> Iterator[PageReader]:
    """Give a reader, whose servers end with the block."""
    be_interruptible()
    reader = PageReader(folder)
    try:
        yield reader
    finally:
        reader.stop()
