"""Installs Tidelog as users do, in .cache/installed: a wheel with the compiled hot path.

Development packages are missing there (kio imports hypothesis if it exists), so start times
and memory are those of an installation.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tools.compiled import STAMP, write_overlay
from tools.places import ROOT, run

ENVIRONMENT = ROOT / ".cache" / "installed"


def installed_python() -> Path:
    """Update the environment and return its Python. Raises ``ToolAbsent``."""
    python = ENVIRONMENT / "bin" / "python"
    stamp, source = ENVIRONMENT / STAMP, (write_overlay() / STAMP).read_text()
    if stamp.exists() and stamp.read_text() == source:
        return python
    run([sys.executable, "-m", "venv", ENVIRONMENT])
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HATCH_BUILD_HOOKS_ENABLE"] = "1"
        build = ["wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", folder, str(ROOT)]
        run([sys.executable, "-m", "pip", *build])
        [wheel] = Path(folder).glob("*.whl")
        constraints = str(ROOT / "constraints.txt")
        install = ["install", "--quiet", "--disable-pip-version-check", "-c", constraints]
        run([python, "-m", "pip", *install, f"{wheel}[node,aws]"])
        reinstall = ["--force-reinstall", "--no-deps", str(wheel)]  # the version stays the same
        run([python, "-m", "pip", *install, *reinstall])
    stamp.write_text(source)
    return python


if __name__ == "__main__":
    os.chdir(ROOT)
    print(installed_python().relative_to(ROOT))
