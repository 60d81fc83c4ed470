"""Builds the bundle of Spark jobs for EMR Serverless: ``python -m tools.job_bundle``.

    dist/jobs/tidelog-jobs.tar.gz    packages/: the jobs and their dependencies, without Spark
    dist/jobs/<job>.py               the program for spark-submit

The files are copied to a folder of a bucket, which is ``JobArtefacts`` in template.yaml. Spark
unpacks the archive for driver and executors; template.yaml sets their paths.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tools import kernel_code
from tools.node_bundle import X86_64, install_packages
from tools.places import ROOT

PYTHON_VERSION = "3.11"  # as JobPython in template.yaml
REQUIREMENTS = (
    *("aioboto3", "cramjam", "crc32c", "kio", "lz4", "obstore", "rich", "typer"),
    *("numba", "pandas", "pyarrow"),
    *("deltalake", "fastavro", "protobuf", "pyiceberg"),
)
SOURCES = ("core/tidelog_core", "sdk/tidelog", "sdk/tidelog_cli", "spark/tidelog_spark")
JOBS = ("activity", "audit", "compact", "export")
PROGRAMS = ROOT / "sdk" / "tidelog_cli" / "spark_jobs"
FOLDER = ROOT / "dist" / "jobs"
ARCHIVE = "tidelog-jobs.tar.gz"


def write_bundle(folder: Path, *, python_version: str = PYTHON_VERSION) -> None:
    """Write the archive and the jobs' programs for machines with this Python."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packages = Path(scratch) / "packages"
        install_packages(packages, REQUIREMENTS, SOURCES, python_version=python_version)
        if (sys.platform, platform.machine()) == ("linux", X86_64):
            kernel_code.build(packages / kernel_code.PLACE)
        with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
            archive.add(packages, "packages")
    for job in JOBS:
        shutil.copy(PROGRAMS / f"{job}.py", folder)


if __name__ == "__main__":
    write_bundle(FOLDER)
    print(FOLDER.relative_to(ROOT))
