"""The script of the cluster's machines, run by bash in a Debian that systemd has booted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws.booted_machine import BootedMachine, booted_machine
from tests.support.waiting import eventually
from tools import debian_root, node_bundle
from tools.places import ToolAbsent

WAIT_SECONDS_MAX = 180.0
NODES = ("tidelog@0", "tidelog@1")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "tidelog-node.tar.gz"
    node_bundle.write_bundle(path, python_version=debian_root.PYTHON_VERSION)
    return path


@pytest.fixture
def machine(tmp_path: Path, bundle: Path) -> Iterator[BootedMachine]:
    try:
        with booted_machine(tmp_path, bundle) as booted:
            yield booted
    except ToolAbsent as absent:
        pytest.skip(str(absent))


def awaited(machine: BootedMachine, unit: str, state: str) -> None:
    eventually(
        lambda: machine.unit(unit, "ActiveState") == state,
        lambda: (
            f"{unit} is {machine.unit(unit, 'ActiveState')}:\n{machine.read('/var/log/user-data.log')}"
        ),
        WAIT_SECONDS_MAX,
    )


def test_the_script_makes_a_machine_whose_nodes_serve(machine: BootedMachine) -> None:
    awaited(machine, "user-data", "active")
    for unit in NODES:
        awaited(machine, unit, "active")  # which they are once they have answered
        assert machine.unit(unit, "StatusText") == "serving"
    assert machine.run("findmnt", "-no", "FSTYPE", "/var/lib/tidelog") == "xfs"
    assert machine.run("systemctl", "list-units", "--failed", "--no-legend") == ""
    assert "python3.11" in machine.read("/var/log/dnf")
    eventually(lambda: machine.stack_status() == "CREATE_COMPLETE", "it signals", WAIT_SECONDS_MAX)

    # One that hangs is started again, and the other goes on.
    before = machine.node_of("tidelog@0")
    os.kill(before, signal.SIGSTOP)
    eventually(lambda: machine.unit("tidelog@0", "NRestarts") == "1", "again", WAIT_SECONDS_MAX)
    awaited(machine, "tidelog@0", "active")
    assert machine.node_of("tidelog@0") != before
    assert machine.unit("tidelog@1", "NRestarts") == "0"

    # A stop hands over, and is no failure.
    machine.run("systemctl", "stop", *NODES)
    for unit in NODES:
        assert machine.unit(unit, "ActiveState") == "inactive"
        assert machine.unit(unit, "Result") == "success"
        log = machine.run("cat", f"/var/log/tidelog/node-{unit[-1]}.log")
        assert log.count("node stopped") == 1, log
    assert machine.run("logrotate", "--debug", "/etc/logrotate.d/tidelog").count("error") == 0


def test_a_script_that_fails_says_so_at_once(tmp_path: Path, bundle: Path) -> None:
    no_disk = {"lsblk": "true"}  # a type without instance storage
    try:
        with booted_machine(tmp_path, bundle, played=no_disk) as machine:
            awaited(machine, "user-data", "failed")
            (signalled,) = machine.read("/var/log/aws").splitlines()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    words = signalled.split()
    assert words[:2] == ["cloudformation", "signal-resource"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--stack-name"].startswith("arn:aws:cloudformation:")
    assert (given["--status"], given["--logical-resource-id"]) == ("FAILURE", "Instances")
    assert given["--unique-id"] == "i-0123456789abcdef0"
