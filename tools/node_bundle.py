"""Builds the bundle that the cluster's machines run: ``python -m tools.node_bundle``.

    packages/            the node and everything it needs, for Amazon Linux 2023
    tidelog_launch.py    started by systemd
    tidelog_in_sync.py   awaited by the creation of a stack and by updates
    tidelog_*.py         parts of both

The machines cannot reach a package registry, so they load everything from a bucket.

The node is compiled for the machines' Python: from its source it takes twice the processor time.
Compiling needs that Python (``python3.12``, or the one of ``make tools``) and a C compiler, and
makes a bundle for this kind of machine. The bundle for Graviton takes a wheel that is made by
``python -m tools.wheels python3.12 --machine aarch64``, or on an arm64 machine: ``--wheel FILE``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import lambda_python, wheels
from tools.places import ROOT, ToolAbsent

PYTHON_VERSION = "3.12"  # of the machines, as in template.yaml
GLIBC_MINOR_MAX = 34  # 2.34: Amazon Linux 2023
X86_64, ARM64 = "x86_64", "aarch64"  # as platforms are named
GLIBC_MINOR_MIN = 17  # of manylinux2014
# All of them: pip takes names literally.
PLATFORMS = (
    *(f"manylinux_2_{minor}" for minor in range(GLIBC_MINOR_MAX, GLIBC_MINOR_MIN - 1, -1)),
    "manylinux2014",
)
OLD_PLATFORMS = ("manylinux1",)  # from before there was arm64
REQUIREMENTS = (
    "aioboto3",
    "aiohttp",
    "cramjam",
    "crc32c",
    "cryptography",
    "google-re2",
    "joserfc",
    "jsonschema-rs",
    "kio",
    "lz4",
    "obstore",
    "prometheus_client",
    "protobuf",
)
SOURCES = ("core/tidelog_core", "sdk/tidelog", "cache_node/tidelog_node")
PROGRAMS = (
    "tidelog_launch.py",
    "tidelog_in_sync.py",
    "tidelog_health.py",
    "tidelog_hook.py",
    "tidelog_ids.py",
    "tidelog_instance.py",
    "tidelog_place.py",
    "tidelog_task.py",
)
BUNDLES = {
    X86_64: ROOT / "dist" / "tidelog-node.tar.gz",
    ARM64: ROOT / "dist" / "tidelog-node-arm64.tar.gz",
}


class WheelUnfit(Exception):
    """The wheel does not run on the machines; the message says why."""


@dataclass(frozen=True, slots=True)
class CompiledWheel:
    """A wheel of Tidelog with the compiled hot path."""

    path: Path
    python_version: str
    machine: str


def compiled_wheel(path: Path) -> CompiledWheel:
    """Return the wheel if it runs on Amazon Linux 2023. Raises ``WheelUnfit``."""
    found = re.fullmatch(r"tidelog-[^-]+-cp3(\d+)-cp3\d+-(\S+)\.whl", path.name)
    if found is None:
        raise WheelUnfit(f"{path.name} is not compiled: build it with python -m tools.wheels")
    for tag in found[2].split("."):
        platform = re.fullmatch(r"manylinux_2_(\d+)_(x86_64|aarch64)", tag)
        if platform is not None and int(platform[1]) <= GLIBC_MINOR_MAX:
            return CompiledWheel(path, f"3.{found[1]}", platform[2])
    raise WheelUnfit(f"{path.name} needs another C library than Amazon Linux 2023 has (2.34)")


def write_bundle(
    path: Path, *, python_version: str = PYTHON_VERSION, wheel: CompiledWheel | None = None
) -> None:
    """Write the bundle for machines with this Python, from source if there is no wheel.

    Raises ``WheelUnfit``.
    """
    if wheel is not None and wheel.python_version != python_version:
        raise WheelUnfit(f"{wheel.path.name} is not for Python {python_version} of the machines")
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = X86_64 if wheel is None else wheel.machine
    sources = SOURCES if wheel is None else ()
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch) / "packages"
        install_packages(
            packages, REQUIREMENTS, sources, python_version=python_version, machine=machine
        )
        if wheel is not None:
            _unpack(wheel.path, packages)
        with tarfile.open(path, "w:gz") as bundle:
            bundle.add(packages, "packages")
            for program in PROGRAMS:
                bundle.add(ROOT / "infra" / "node" / program, program)


def install_packages(
    folder: Path,
    requirements: Sequence[str],
    sources: Sequence[str],
    *,
    python_version: str,
    machine: str = X86_64,
) -> None:
    """Put packages for Amazon Linux 2023, and Tidelog's own, into the folder."""
    names = PLATFORMS + (OLD_PLATFORMS if machine == X86_64 else ())
    options = [option for name in names for option in ("--platform", f"{name}_{machine}")]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
            *("--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"),
            *("--python-version", python_version, *options, "--target", str(folder)),
            *("-c", str(ROOT / "constraints.txt"), *requirements),
        ],
        check=True,
    )
    for source in sources:
        shutil.copytree(
            ROOT / source, folder / Path(source).name, ignore=shutil.ignore_patterns("__pycache__")
        )


def _unpack(wheel: Path, folder: Path) -> None:
    """Put the packages of ``SOURCES`` into the folder, and the modules that they share.

    With the wheel's metadata, by which nodes know their version.
    """
    packages = {Path(source).name for source in SOURCES}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            first, _, rest = name.partition("/")
            is_metadata = first.endswith(".dist-info") and rest == "METADATA"
            if first in packages or is_metadata or (not rest and name.endswith(".so")):
                archive.extract(name, folder)


def _own_wheel(python: str, folder: Path) -> CompiledWheel:
    return compiled_wheel(wheels.build(wheels.environment_of(python), folder))


def _python() -> str:
    """Return the machines' Python. Raises ``ToolAbsent``."""
    name = f"python{PYTHON_VERSION}"
    found = shutil.which(name)
    if found is not None:
        return found
    if lambda_python.closest().minor == PYTHON_VERSION:
        return str(lambda_python.closest().program)
    raise ToolAbsent(f"{name} is not on this machine: install it, or run `make tools`")


def main() -> None:
    """Write the bundle, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m tools.node_bundle")
    parser.add_argument("--wheel", type=Path, help="a wheel of tools.wheels, instead of a new one")
    parser.add_argument("--source", action="store_true", help="no compiled modules")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = None
            if given.wheel is not None:
                wheel = compiled_wheel(given.wheel)
            elif not given.source:
                wheel = _own_wheel(_python(), Path(scratch))
            bundle = BUNDLES[X86_64 if wheel is None else wheel.machine]
            write_bundle(bundle, wheel=wheel)
    except (ToolAbsent, WheelUnfit) as error:
        sys.exit(str(error))
    print(bundle.relative_to(ROOT))


if __name__ == "__main__":
    main()
