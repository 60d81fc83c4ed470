"""A machine that boots: Debian's systemd as the first process of namespaces of its own.

Amazon Linux cannot be had here, so some programs of its are played: ``dnf`` (what it would install is
there), ``aws`` (which gives the bundle), ``lsblk`` (which names a loop device as instance storage) and
the agent of CloudWatch. All else is real: bash, systemd, mkfs, mount, the units, the nodes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.aws import beside_machine
from tests.aws.rendering import PSEUDO, render
from tests.support.waiting import eventually
from tools import debian_root, sam
from tools.places import ROOT, ToolAbsent, require

BOOT = Path(__file__).with_name("boot_machine.sh")
DISK_BYTES = 1 << 29
WATCHDOG_SECONDS = 12  # not a minute, so that the test is shorter
SETTINGS = {
    "ZoneNumber": "1",
    "SubnetId": "subnet-1",
    "ClusterName": "tidelog",
    "NodeSecurityGroup": "sg-1",
    "NodeProfileArn": "arn",
    "NodeLog": "nodes",
    "BootstrapTargets": "arn",
    "ClientAccess": "open",
    "NodeCertificate": "",
    "AdminUser": "",
    "AdminSecret": "",
    "TokenSecret": "",
    "Authorizer": "",
    "AuthorizerDryRun": "false",
    "BrokerIdTableName": beside_machine.TABLE,
    "MetadataStore": "sqlite:///var/lib/tidelog/metadata.db",
    "ObjectStore": "file:///var/lib/tidelog/objects",
    "NodeBundle": "bundles/tidelog-node.tar.gz",
    "InstanceType": "i4i.large",
    "ImageId": "ami-1",
    "InstancesPerZone": "1",
    "ProcessesPerInstance": "2",
    "NodePortFirst": "9092",
    "SecurePortFirst": "9292",
    "InterBrokerPortFirst": "9192",
    "PrivateLinkHost": "",
    "RetentionMs": "604800000",
    "PythonVersion": debian_root.PYTHON_VERSION,
}
ENVIRONMENT = f"""[Service]
Environment=AWS_ENDPOINT_URL=http://127.0.0.1:{beside_machine.PORT}
Environment=AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
"""
USER_DATA_UNIT = """[Unit]
Description=The script of the machine
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/bash /root/user-data.sh
StandardOutput=append:/var/log/user-data.log
StandardError=append:/var/log/user-data.log
"""
AGENT_UNIT = """[Service]
ExecStart=/usr/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
PLAYED = {
    "dnf": 'echo "$@" >> /var/log/dnf',
    "aws": 'echo "$@" >> /var/log/aws; [ "$1 $2" != "s3 cp" ] || cat /root/bundle.tar.gz',
    "lsblk": 'echo "/dev/disk0 Amazon EC2 NVMe Instance Storage"',
}


class BootedMachine:
    """A machine whose script has begun."""

    def __init__(self, init: int, services: subprocess.Popen[str], changed: Path) -> None:
        self._init = init  # its systemd
        self._services = services
        self._changed = changed  # what differs from Debian's root

    def run(self, *command: str) -> str:
        """Return what the command says in the machine, whether it fails or not."""
        entered = ["nsenter", "-t", str(self._init), "-m", "-p", "-n", "-r", *command]
        done = subprocess.run(entered, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    def read(self, path: str) -> str:
        """Return a file, empty if it is not there."""
        found = self._changed / path.lstrip("/")
        return found.read_text(errors="replace") if found.exists() else ""

    def unit(self, name: str, what: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", what, name)

    def node_of(self, unit: str) -> int:
        """Return the id of the node's process, outside of the machine."""
        main = self.unit(unit, "MainPID")
        child = self.run("cat", f"/proc/{main}/task/{main}/children").split()[0]
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue  # It has ended.
            ids = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[1:]
            if len(ids) > 1 and ids[-1] == child and self._is_inside(int(ids[0])):
                return int(ids[0])
        raise AssertionError(f"{unit} has no node")

    def stack_status(self) -> str:
        """Return the status of the stack that waits for the machine."""
        assert self._services.stdin is not None
        assert self._services.stdout is not None
        self._services.stdin.write("\n")
        self._services.stdin.flush()
        return self._services.stdout.readline().strip()

    def _is_inside(self, process: int) -> bool:
        own, of_init = (Path(f"/proc/{one}/ns/pid").readlink() for one in (process, self._init))
        return own == of_init


@contextmanager
def booted_machine(
    folder: Path, bundle: Path, *, played: Mapping[str, str] | None = None
) -> Iterator[BootedMachine]:
    """Boot a machine with the script of ``infra/zone.yaml``. Raises ``ToolAbsent``."""
    if os.geteuid() != 0:
        raise ToolAbsent("a machine needs root to boot")
    for program in ("unshare", "nsenter", "losetup", "ip", "mount"):
        require(program)
    lower = debian_root.debian_root()
    for name in ("upper", "overlay", "root", "cgroup"):
        (folder / name).mkdir(parents=True)
    with ExitStack() as stack:
        disk = stack.enter_context(_loop_device(folder / "disk"))
        holder = stack.enter_context(_process(["unshare", "--net", "sleep", "infinity"]))
        eventually(lambda: _has_namespace(holder.pid), "the network namespace is there")
        beside = ["nsenter", "-t", str(holder.pid), "-n"]
        services = stack.enter_context(
            _process([*beside, sys.executable, "-m", "tests.aws.beside_machine", str(folder)])
        )
        assert services.stdout is not None
        stack_id = services.stdout.readline().strip()
        assert stack_id.startswith("arn:"), stack_id
        _fill(folder / "upper", bundle, stack_id, {**PLAYED, **(played or {})})
        name = f"tidelog-test-{uuid.uuid4().hex}"
        stack.callback(_remove_cgroup, name, folder / "cgroup")
        boot: list[str | Path] = [BOOT, lower, folder, name, disk]
        outer = stack.enter_context(_process([*beside, "unshare", "--mount", *boot]))
        init = _child_of(outer)
        stack.callback(os.kill, init, signal.SIGKILL)
        machine = BootedMachine(init, services, folder / "upper")
        eventually(lambda: "running" in machine.run("systemctl", "is-system-running"), "it is up")
        machine.run("systemctl", "start", "--no-block", "user-data")
        yield machine


def _fill(upper: Path, bundle: Path, stack_id: str, played: Mapping[str, str]) -> None:
    script = render(sam.INFRA / "zone.yaml", SETTINGS).properties("Instance")
    text: str = script["LaunchTemplateData"]["UserData"]
    units = "etc/systemd/system"
    files = {
        "root/user-data.sh": text.replace(PSEUDO["AWS::StackId"], stack_id),
        f"{units}/user-data.service": USER_DATA_UNIT,
        f"{units}/amazon-cloudwatch-agent.service": AGENT_UNIT,
        f"{units}/tidelog@.service.d/test.conf": f"{ENVIRONMENT}WatchdogSec={WATCHDOG_SECONDS}\n",
        f"{units}/tidelog-in-sync.service.d/test.conf": ENVIRONMENT,
        "opt/aws/amazon-cloudwatch-agent/etc/empty": "",
        **{f"usr/bin/{name}": f"#!/bin/bash\n{does}\n" for name, does in played.items()},
    }
    for path, content in files.items():
        target = upper / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(0o755)
    shutil.copy(bundle, upper / "root" / "bundle.tar.gz")


def _child_of(outer: subprocess.Popen[str]) -> int:
    """Return the systemd that the script becomes the parent of."""
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")

    def found() -> list[str]:
        assert outer.poll() is None, "the machine does not boot"
        return children.read_text().split()

    def is_systemd() -> bool:
        return bool(found()) and b"systemd" in Path(f"/proc/{found()[0]}/cmdline").read_bytes()

    eventually(is_systemd, "systemd is started")
    return int(found()[0])


def _has_namespace(process: int) -> bool:
    own, of_process = (Path(f"/proc/{one}/ns/net").readlink() for one in ("self", process))
    return own != of_process


@contextmanager
def _process(command: list[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """Run it meanwhile. It ends when its standard input does, or is killed."""
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.terminate()
        with process:  # which closes its pipes
            pass


@contextmanager
def _loop_device(path: Path) -> Iterator[str]:
    with path.open("wb") as file:
        file.truncate(DISK_BYTES)
    command = ["losetup", "--find", "--show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolAbsent(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def _remove_cgroup(name: str, folder: Path) -> None:
    """Remove the machine's group, once its processes are gone."""
    mount = ["unshare", "--mount", "bash", "-c"]
    script = (
        f"mount -t cgroup2 none {folder} && "
        f"for _ in $(seq 50); do find {folder}/{name} -depth -type d -exec rmdir {{}} + && exit; "
        "sleep 0.1; done"
    )
    subprocess.run([*mount, script], check=False, capture_output=True)
