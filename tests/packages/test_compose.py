"""The compose file: loaded as Docker Compose does, and run on podman, an engine of containers."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import compose, kcat
from tools.places import ToolAbsent

CONTAINER = "tidelog_tidelog_1"
HEALTHY_SECONDS_MAX = 120.0
STOP_SECONDS = 60

pytestmark = [pytest.mark.slow, pytest.mark.packages, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def _loader() -> None:
    try:
        compose.install_loader()
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.mark.usefixtures("_loader")
def test_compose_loads_the_file() -> None:
    loaded = compose.load(compose.FILE)
    assert loaded.returncode == 0, loaded.stderr
    service = json.loads(loaded.stdout)["services"]["tidelog"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert Path(service["build"]["context"], service["build"]["dockerfile"]).is_file()
    assert "--advertised-host=localhost" in service["command"]


@pytest.mark.usefixtures("_loader")
def test_an_unknown_key_is_found(tmp_path: Path) -> None:
    """The check above can fail."""
    broken = tmp_path / "compose.yaml"
    broken.write_text(compose.FILE.read_text().replace("    image:", "    imagee:"))
    loaded = compose.load(broken)
    assert loaded.returncode != 0
    assert "imagee" in loaded.stderr


@pytest.fixture
def cluster(_built_image: None) -> Iterator[None]:
    """The cluster of the file, on an engine."""
    try:
        compose.install_engine()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    with compose.network():
        compose.compose("down", "--volumes")
        started = compose.compose("up", "--detach", "--no-build")
        try:
            assert started.returncode == 0, started.stderr
            yield
        finally:
            compose.compose("down", "--volumes")


def test_a_cluster_of_compose_serves_kcat(cluster: None) -> None:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed: run `make tools`")
    program, environment = found
    _wait_healthy()
    sent = "".join(f"key{number}:value {number}\n" for number in range(100))
    produce = compose.inside(str(program), "-P", "-b", "localhost:9092", "-t", "flights", "-K:")
    subprocess.run(produce, input=sent.encode(), env=environment, check=True, timeout=60)
    consume = [str(program), "-C", "-b", "localhost:9094", "-t", "flights", "-K:", "-e", "-q"]
    read = subprocess.run(
        compose.inside(*consume), env=environment, check=True, timeout=60, capture_output=True
    )
    assert read.stdout.decode() == sent
    stopped = compose.podman("stop", "--time", str(STOP_SECONDS), CONTAINER)
    assert stopped.returncode == 0, stopped.stderr
    state = compose.podman("inspect", "--format", "{{.State.ExitCode}}", CONTAINER)
    assert state.stdout.strip() == "0"


def _wait_healthy() -> None:
    """Wait for the health check of the file, which an engine beside systemd would run itself."""
    deadline = time.monotonic() + HEALTHY_SECONDS_MAX
    while time.monotonic() < deadline:
        if compose.podman("healthcheck", "run", CONTAINER).returncode == 0:
            return
        time.sleep(1)
    pytest.fail(compose.podman("logs", CONTAINER).stdout)
