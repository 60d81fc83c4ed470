"""A pod of the chart, run on podman, which takes Kubernetes' pods: no cluster of Kubernetes is here.

What a cluster would give it is put in its place: the number and the name of the pod, its volumes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import compose, container, kcat, kubernetes
from tools.places import ROOT, ToolAbsent

CHART = ROOT / "infra" / "chart" / "tidelog"
POD, CONTAINER = "x-0", "x-0-node"
PORT, HTTP_PORT = 9092, 9644
READY_SECONDS_MAX = 120.0
PAUSE = Path("/usr/bin/catatonit")  # the process of a pod that has its namespaces
OF_A_CLUSTER = ("automountServiceAccountToken", "serviceAccountName", "topologySpreadConstraints")
VALUES = {
    "replicas": "1",
    "image.repository": container.IMAGE,
    "image.tag": "latest",
    "image.pullPolicy": "Never",
}

pytestmark = [pytest.mark.slow, pytest.mark.packages, pytest.mark.timeout(3600)]


def _pod() -> dict[str, Any]:
    """Return the first pod of the chart's set, for an engine."""
    sets = [f"--set={name}={value}" for name, value in VALUES.items()]
    newest = kubernetes.KUBERNETES_VERSIONS[-1]
    rendered = kubernetes.helm("template", "x", CHART, "--kube-version", newest, *sets)
    assert rendered.returncode == 0, rendered.stderr
    objects = [one for one in yaml.safe_load_all(rendered.stdout) if one]
    [found] = [one for one in objects if one["kind"] == "StatefulSet"]
    template = found["spec"]["template"]
    spec = {name: told for name, told in template["spec"].items() if name not in OF_A_CLUSTER}
    spec["volumes"] = [{"name": name, "emptyDir": {}} for name in ("data", "tmp")]
    [node] = spec["containers"]
    node["env"] = [{"name": "TIDELOG_BROKER_ID", "value": "0"}]
    node["args"] = [argument.replace("$(POD_HOST)", "localhost") for argument in node["args"]]
    metadata = {"name": POD, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.fixture
def pod(_built_image: None, tmp_path: Path) -> Iterator[None]:
    """The pod, running."""
    try:
        kubernetes.install()
        compose.install_engine()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    if not PAUSE.exists():
        pytest.skip("catatonit is not on this machine: install it")
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(yaml.safe_dump(_pod()))
    with compose.network():
        compose.podman("pod", "rm", "--force", POD)
        started = compose.podman("play", "kube", str(manifest))
        try:
            assert started.returncode == 0, started.stderr
            yield
        finally:
            compose.podman("pod", "rm", "--force", POD)


def test_a_pod_of_the_chart_serves_kcat_and_ends_in_order(pod: None) -> None:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed: run `make tools`")
    program, environment = found
    _wait_ready()
    sent = "".join(f"key{number}:value {number}\n" for number in range(100))
    base = compose.inside(str(program), "-b", f"localhost:{PORT}", "-t", "flights", "-K:")
    subprocess.run([*base, "-P"], input=sent.encode(), env=environment, check=True, timeout=60)
    read = subprocess.run(
        [*base, "-C", "-e", "-q"], env=environment, check=True, timeout=60, capture_output=True
    )
    assert read.stdout.decode() == sent
    told = compose.podman("inspect", "--format", "{{.HostConfig.ReadonlyRootfs}}", CONTAINER)
    assert told.stdout.strip() == "true"
    assert compose.podman("pod", "stop", "--time", "60", POD).returncode == 0
    ended = compose.podman("inspect", "--format", "{{.State.ExitCode}}", CONTAINER)
    assert ended.stdout.strip() == "0"


def _wait_ready() -> None:
    """Wait as the chart's probe does: podman knows no probe of a port by its name."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    url = f"http://localhost:{HTTP_PORT}/readyz"
    ask = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=5)"
    command = compose.inside(sys.executable, "-c", ask)
    while time.monotonic() < deadline:
        if subprocess.run(command, check=False, capture_output=True).returncode == 0:
            return
        time.sleep(1)
    logs = compose.podman("logs", CONTAINER)
    pytest.fail(logs.stdout + logs.stderr)
