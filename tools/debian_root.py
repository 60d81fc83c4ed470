"""A Debian root with systemd, made by debootstrap: what machines run can run in it, in tests.

It is made once, and nobody may change it. Needs root and a Debian machine; debootstrap itself is
taken from Debian's archive, and is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, require

SUITE = "bookworm"
PYTHON_VERSION = "3.11"  # the suite's
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    *("ca-certificates", "curl", "iproute2", "logrotate", "mount", "python3"),
    *("systemd", "systemd-sysv", "util-linux", "xfsprogs"),
)
_ROOT = TOOLS_DIR / f"debian-{SUITE}-root-1"


def debian_root() -> Path:
    """Return the folder; makes it if it is missing. Raises ``ToolAbsent``."""
    if _ROOT.exists():
        return _ROOT
    scratch = _ROOT.with_name(f"{_ROOT.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    bootstrap(scratch, PACKAGES)
    scratch.rename(_ROOT)
    return _ROOT


def bootstrap(root: Path, packages: Sequence[str], *options: str) -> None:
    """Make a small root with some packages, by debootstrap. Raises ``ToolAbsent``."""
    if os.geteuid() != 0:
        raise ToolAbsent("debootstrap needs root")
    apt, dpkg = require("apt-get"), require("dpkg-deb")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run([apt, "download", "--quiet", "debootstrap"], folder)
        (package,) = folder.glob("debootstrap_*.deb")
        _run([dpkg, "-x", package, folder], folder)
        program = folder / "usr" / "sbin" / "debootstrap"
        included = f"--include={','.join(packages)}"
        _run([program, "--variant=minbase", *options, included, SUITE, root, MIRROR], folder)


def _run(command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "DEBOOTSTRAP_DIR": str(folder / "usr" / "share" / "debootstrap")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ToolAbsent(f"{command[0]} failed: {(done.stdout + done.stderr).strip()[-1000:]}")
