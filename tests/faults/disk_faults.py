"""A disk that fails when it is told to, for real processes on real files.

    faults = DiskFaults(tmp_path / "faults")
    NodeProcess(data_dir, environment=faults.environment())
    with faults.failing(errno.ENOSPC, ("write",), data_dir):
        ...

A small library (``faults.c``) is loaded into the process before libc and fails the calls that
the control file names. Without the control file it does nothing. Root is not needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.places import ROOT

SOURCE = Path(__file__).with_name("faults.c")
ALL_CALLS = ("write", "fsync", "read", "truncate")


class DiskFaults:
    """One control file. Processes started with ``environment`` obey it while it is there."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self._rules: list[str] = []

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment."""
        return {"LD_PRELOAD": str(built_library()), "TIDELOG_FAULTS": str(self.control)}

    def fail(self, number: int, calls: Sequence[str], path: Path) -> None:
        """Fail the calls on the file, or on everything in the directory, from now on."""
        prefix = f"{path.resolve()}/" if path.is_dir() else str(path.resolve())
        self._rules.append(f"{number} {','.join(calls)} {prefix}")
        self._write()

    def heal(self) -> None:
        """Let everything work again."""
        self._rules.clear()
        self._write()

    @contextmanager
    def failing(self, number: int, calls: Sequence[str], path: Path) -> Iterator[None]:
        """Fail the calls for the length of the block."""
        self.fail(number, calls, path)
        try:
            yield
        finally:
            self.heal()

    def _write(self) -> None:
        if not self._rules:
            self.control.unlink(missing_ok=True)
            return
        temporary = self.control.with_name(f"{self.control.name}.tmp")
        temporary.write_text("".join(f"{rule}\n" for rule in self._rules))
        temporary.rename(self.control)


def built_library() -> Path:
    """Return the library, compiled unless it has been."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = ROOT / ".cache" / "faults" / f"faults-{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc")
        assert compiler is not None, "a C compiler is needed"
        temporary = library.with_name(f"{library.name}.{os.getpid()}")
        command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(temporary)]
        subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
        temporary.rename(library)  # Several test processes may do this at once.
    return library
