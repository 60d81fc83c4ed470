"""The Helm chart, by Helm itself and by the schemas of Kubernetes' objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from tidelog_node.settings import NodeSettings, parse_settings

from tools import kubernetes
from tools.places import ROOT, ToolAbsent

CHART = ROOT / "infra" / "chart" / "tidelog"
HOST = "x-0.x-nodes.default.svc"
NEWEST = kubernetes.KUBERNETES_VERSIONS[-1]
STORES = {"stores.metadata": "dynamodb://table?region=eu-west-1", "stores.objects": "s3://bucket/p"}

pytestmark = [pytest.mark.slow, pytest.mark.packages]


@pytest.fixture(autouse=True, scope="module")
def _helm() -> None:
    try:
        kubernetes.install()
    except ToolAbsent as absent:
        pytest.skip(str(absent))


def _render(values: Mapping[str, str], version: str = NEWEST) -> str:
    sets = [f"--set={name}={value}" for name, value in values.items()]
    done = kubernetes.helm("template", "x", CHART, "--kube-version", version, *sets)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _objects(text: str) -> dict[str, Any]:
    found = [one for one in yaml.safe_load_all(text) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def test_lint_finds_nothing() -> None:
    sets = [f"--set={name}={value}" for name, value in STORES.items()]
    done = kubernetes.helm("lint", "--strict", CHART, *sets)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", kubernetes.KUBERNETES_VERSIONS)
@pytest.mark.parametrize(
    "values",
    [
        {"replicas": "1"},
        STORES,
        {**STORES, "tlsSecret": "tls", "ports.tls": "9093", "persistence.storageClass": "fast"},
    ],
    ids=["one", "three", "tls"],
)
def test_every_object_fits_kubernetes_schemas(values: dict[str, str], version: str) -> None:
    checked = kubernetes.kubeconform(_render(values, version), version)
    assert checked.returncode == 0, checked.stdout
    assert "Valid: 5, Invalid: 0, Errors: 0" in checked.stdout


def test_an_unknown_field_is_found() -> None:
    """The check above can fail."""
    broken = _render({"replicas": "1"}).replace("  replicas: 1", "  replicaz: 1")
    checked = kubernetes.kubeconform(broken, NEWEST)
    assert checked.returncode == 1
    assert "replicaz" in checked.stdout


def test_several_nodes_without_common_stores_are_refused() -> None:
    done = kubernetes.helm("template", "x", CHART, "--kube-version", NEWEST)
    assert done.returncode != 0
    assert "stores.metadata and stores.objects" in done.stderr


@pytest.mark.parametrize(
    "value", ["replicas=0", "stores.metadata=postgres://x", "replica=2", "settings.a=1"]
)
def test_values_that_are_not_allowed_are_refused(value: str) -> None:
    done = kubernetes.helm(
        "template", "x", CHART, "--kube-version", NEWEST, "--set=replicas=1", f"--set={value}"
    )
    assert done.returncode != 0
    assert value.partition("=")[0].partition(".")[0] in done.stderr


def test_a_pod_has_no_rights_and_writes_to_its_volumes_only() -> None:
    pod = _objects(_render({"replicas": "1"}))["StatefulSet/x"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_probes_are_those_of_the_node() -> None:
    pod = _objects(_render({"replicas": "1"}))["StatefulSet/x"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    paths = {kind: container[kind]["httpGet"]["path"] for kind in container if "Probe" in kind}
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert "--http-port=9644" in container["args"]
    assert {"name": "http", "containerPort": 9644} in container["ports"]


def test_a_node_parses_the_arguments_of_its_pod() -> None:
    settings = _settings_of_pod(_render(STORES))
    [listener] = settings.listeners.clients
    assert (settings.broker_id, listener.advertised_host, listener.port) == (0, HOST, 9092)
    assert settings.config_overrides["min.insync.replicas"] == "2"


def test_listeners_replace_the_plain_one() -> None:
    values = {
        **STORES,
        r"settings.listeners": "TLS://:9093",
        r"settings.advertised\.listeners": "TLS://$(POD_HOST):9093",
        r"settings.listener\.security\.protocol\.map": "TLS:SSL",
        "tlsSecret": "nodes-tls",
        "ports.kafka": "null",
        "ports.tls": "9093",
    }
    settings = _settings_of_pod(_render(values))
    [listener] = settings.listeners.clients
    assert (listener.name, listener.advertised_host, listener.port) == ("TLS", HOST, 9093)
    assert listener.protocol.has_tls


def _settings_of_pod(text: str) -> NodeSettings:
    """Return what the first pod's process makes of its arguments."""
    pod = _objects(text)["StatefulSet/x"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = [argument.replace("$(POD_HOST)", HOST) for argument in container["args"]]
    return parse_settings(given, {"TIDELOG_BROKER_ID": "0"})
