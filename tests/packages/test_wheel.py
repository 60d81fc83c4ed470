"""A wheel, installed by itself in an empty environment, as a stranger would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import wheels
from tools.places import ROOT, ToolAbsent, run
from tools.ports import free_port

OWN = f"python{sys.version_info.major}.{sys.version_info.minor}"
FIRST_RECORD_SECONDS_MAX = 60.0  # from the start of the cluster

pytestmark = [pytest.mark.slow, pytest.mark.packages, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=["python3.11", "python3.12", "python3.13", "python3.14"])
def python(request: pytest.FixtureRequest) -> str:
    """Each version that there are wheels for."""
    name: str = request.param
    try:
        return sys.executable if name == OWN else wheels.interpreter(name)
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def wheel(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel for this Python, from a build that takes minutes."""
    return wheels.build(wheels.environment_of(python), tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def environment(python: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel, what it needs, and nothing of the source tree."""
    folder = tmp_path_factory.mktemp("stranger")
    run([python, "-m", "venv", folder])
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run([*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[node]"])
    return folder


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def test_the_wheel_fits_old_systems_and_has_compiled_modules(wheel: Path) -> None:
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.startswith("tidelog__mypyc.") for name in names)
    assert "tidelog_core/log/local_log.py" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "bench/"))]


def test_the_installed_modules_are_compiled(environment: Path) -> None:
    program = "import tidelog_node.dispatch as module; print(module.__file__)"
    found = subprocess.run(
        [environment / "bin" / "python", "-c", program],
        cwd=environment,
        env=_clean(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip().endswith(".so")


@pytest.fixture
def cluster(environment: Path, tmp_path: Path) -> Iterator[tuple[str, float]]:
    """``tidelog up`` of the environment; its address, and when it was started."""
    port = free_port()
    started_at = time.monotonic()
    command = [environment / "bin" / "tidelog", "up", "--port", str(port), "--no-http"]
    with subprocess.Popen(
        [*command, "--data-dir", tmp_path / "data"],
        cwd=tmp_path,
        env=_clean(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield f"127.0.0.1:{port}", started_at
        process.terminate()
        process.stdout.read()
    assert process.returncode == 0


def test_the_first_record_of_a_stranger(
    environment: Path, cluster: tuple[str, float], tmp_path: Path
) -> None:
    address, started_at = cluster

    def tidelog(*arguments: str, given: str | None = None) -> str:
        done = subprocess.run(
            [environment / "bin" / "tidelog", *arguments, "--bootstrap", address],
            input=given,
            cwd=tmp_path,
            env=_clean(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    tidelog("topic", "create", "flights", "--partitions", "6")
    tidelog("produce", "flights", "--key-separator", ":", given="N14228:to IAH\n")
    read = tidelog("consume", "flights", "--from-beginning", "--max-messages", "1")
    assert "to IAH" in read
    assert time.monotonic() - started_at < FIRST_RECORD_SECONDS_MAX
