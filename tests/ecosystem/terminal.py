"""A program that draws in a terminal, and the terminal's screen."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyte

LINES, COLUMNS = 40, 160


class Terminal:
    """``with``: the program runs; it is killed at the end."""

    def __init__(self, command: Sequence[str | Path], *, environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._lock = threading.Lock()  # of the screen: the thread draws on it
        self._master = -1
        self._thread = threading.Thread(target=self._draw)

    @property
    def lines(self) -> list[str]:
        """The lines of the screen: words with one space between."""
        with self._lock:
            return [" ".join(line.split()) for line in self._screen.display]

    def __enter__(self) -> Terminal:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            self._command, stdin=slave, stdout=slave, stderr=slave, env=self._environment
        )
        os.close(slave)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        os.close(self._master)

    def _draw(self) -> None:
        stream = pyte.ByteStream(self._screen)
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # The program has ended.
                return
            if not part:
                return
            with self._lock:
                stream.feed(part)
