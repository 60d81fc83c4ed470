"""PostgreSQL of the machine, or from Debian's packages, unpacked into the folder of tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.debian import unpack
from tools.places import TOOLS_DIR, ToolAbsent
from tools.ports import free_port

PACKAGES = ("postgresql-15", "postgresql-client-15", "libpq5")
START_SECONDS_MAX = 60.0
_ROOT = TOOLS_DIR / "postgresql-15"
_NOBODY = 65534  # the server does not run as root


def install() -> None:
    """Make ``serving`` work, unless the machine has PostgreSQL already."""
    if programs() is not None:
        return
    unpack(PACKAGES, _ROOT)


def programs() -> Path | None:
    """Return the folder of the server's programs, ``None`` if they are missing."""
    roots = (Path("/usr/lib/postgresql"), _ROOT / "usr" / "lib" / "postgresql")
    found = [path.parent for root in roots for path in sorted(root.glob("*/bin/initdb"))]
    if found:
        return found[-1]
    installed = shutil.which("initdb")
    return None if installed is None else Path(installed).parent


@dataclass(frozen=True, slots=True)
class Database:
    """A server on 127.0.0.1 without a password, whose log can be decoded."""

    port: int
    programs: Path

    def run(self, *statements: str) -> str:
        """Run statements, each in its own transaction; return what they print."""
        command: list[str | Path] = [self.programs / "psql", "-X", "-q", "-A", "-t"]
        command += ["-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port)]
        command += ["-U", "postgres", *(word for one in statements for word in ("-c", one))]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=_environment()
        )
        if done.returncode != 0:
            raise RuntimeError(f"psql: {done.stderr.strip()}")
        return done.stdout.strip()


@contextmanager
def serving() -> Iterator[Database]:
    """Run a server with an empty database. Raises ``ToolAbsent``."""
    found = programs()
    if found is None:
        raise ToolAbsent("PostgreSQL is not installed: run `make tools`")
    is_root = os.geteuid() == 0
    # Not in pytest's folder: only its owner may enter that.
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if is_root:
            os.chown(folder, _NOBODY, _NOBODY)
        database = Database(free_port(), found)
        _as_nobody([found / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust"])
        command: list[str | Path] = [found / "postgres", "-D", folder / "data"]
        command += ["-p", str(database.port), "-c", "wal_level=logical", "-c", "fsync=off"]
        command += ["-c", "listen_addresses=127.0.0.1", "-k", folder]
        user = _NOBODY if is_root else None
        with (
            subprocess.Popen(
                command,
                user=user,
                cwd=folder,
                env=_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as server,
        ):
            try:
                _wait_until_ready(database)
                yield database
            finally:
                server.send_signal(signal.SIGINT)  # SIGTERM would wait for clients to leave.


def _wait_until_ready(database: Database) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            database.run("SELECT 1")
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _as_nobody(command: Sequence[str | Path]) -> None:
    user = _NOBODY if os.geteuid() == 0 else None
    done = subprocess.run(
        command, user=user, cwd="/", env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ToolAbsent(f"{command[0]} failed: {done.stderr.strip()[-1000:]}")


def _environment() -> dict[str, str]:
    libraries = [str(path.parent) for path in _ROOT.glob("usr/lib/*/libpq.so.5")]
    return {**os.environ, "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": ":".join(libraries)}
