"""What ``tidelog up`` tells each of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_node.local_cluster.cluster_settings import ClusterSettings


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClusterSettings(data_dir=tmp_path, node_count=0, port=70_000)
    assert len(raised.value.problems) == 2


@pytest.mark.parametrize(
    "name", ["listeners", "advertised.listeners", "listener.name.a.ssl.client.auth"]
)
def test_nodes_of_one_machine_do_not_share_an_address(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} cannot be given for all nodes"):
        ClusterSettings(data_dir=tmp_path, config_overrides={name: "PLAINTEXT://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("PLAINTEXT", "--host 0.0.0.0 --port 9094 --advertised-host tide.example"),
        (
            "SASL_SSL",
            "--set listeners=SASL_SSL://0.0.0.0:9094"
            " --set advertised.listeners=SASL_SSL://tide.example:9094",
        ),
    ],
)
def test_each_node_advertises_the_host_and_its_own_port(
    tmp_path: Path, protocol: str, expected: str
) -> None:
    settings = ClusterSettings(
        data_dir=tmp_path,
        node_count=3,
        host="0.0.0.0",
        advertised_host="tide.example",
        security_protocol=protocol,
    )
    assert f" {expected} " in " ".join(settings.command(3))


def test_only_usual_ports_may_become_free_ones(tmp_path: Path) -> None:
    asked = ClusterSettings(data_dir=tmp_path, http_port=5, console_port=6)
    usual = ClusterSettings(
        data_dir=tmp_path,
        http_port=5,
        console_port=6,
        has_usual_http_port=True,
        has_usual_console_port=True,
    )
    assert "--http-port-or-free" not in asked.command(1)
    assert "--port-or-free" not in asked.console_command(())
    assert "--http-port-or-free" in usual.command(1)
    assert "--port-or-free" in usual.console_command(())
