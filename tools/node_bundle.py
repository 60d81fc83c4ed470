"""Builds the bundle that the cluster's machines run: ``python -m tools.node_bundle``.

    packages/            the node and everything it needs, for Amazon Linux 2023 on x86-64
    tidelog_launch.py    started by systemd
    tidelog_in_sync.py   awaited by the creation of a stack and by updates
    tidelog_health.py    part of both

The machines cannot reach a package registry, so they load everything from a bucket.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.places import ROOT

PYTHON_VERSION = "3.12"  # of the machines, as in template.yaml
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
REQUIREMENTS = (
    "aioboto3",
    "aiohttp",
    "cramjam",
    "crc32c",
    "cryptography",
    "google-re2",
    "joserfc",
    "kio",
    "lz4",
    "obstore",
    "prometheus_client",
)
SOURCES = ("core/tidelog_core", "sdk/tidelog", "cache_node/tidelog_node")
PROGRAMS = ("tidelog_launch.py", "tidelog_in_sync.py", "tidelog_health.py")
BUNDLE = ROOT / "dist" / "tidelog-node.tar.gz"


def write_bundle(path: Path, *, python_version: str = PYTHON_VERSION) -> None:
    """Write the bundle for machines with this Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch) / "packages"
        install_packages(packages, REQUIREMENTS, SOURCES, python_version=python_version)
        with tarfile.open(path, "w:gz") as bundle:
            bundle.add(packages, "packages")
            for program in PROGRAMS:
                bundle.add(ROOT / "infra" / "node" / program, program)


def install_packages(
    folder: Path, requirements: Sequence[str], sources: Sequence[str], *, python_version: str
) -> None:
    """Put packages for Amazon Linux 2023 on x86-64, and Tidelog's own, into the folder."""
    options = [option for name in PLATFORMS for option in ("--platform", name)]
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


if __name__ == "__main__":
    write_bundle(BUNDLE)
    print(BUNDLE.relative_to(ROOT))
