"""Builds the machine code of the Arrow kernels for a wheel: ``python -m tools.kernel_code FOLDER``.

It runs on any processor of this platform, with any Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.places import ROOT

PLACE = Path("tidelog", "arrow", "native", "code")  # in a wheel


def build(folder: Path) -> Path:
    """Build the file in another process, which reads its settings when it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.kernel_code", str(folder)]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NUMBA_CPU_NAME": "generic"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return folder / found.stdout.strip()


def main(folder: Path) -> None:
    """Write the file into the folder, and print its name."""
    from tidelog.arrow.native.stored_code import shipped_file

    name, data = shipped_file()
    (folder / name).write_bytes(data)
    print(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
