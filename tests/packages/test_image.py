"""The container image: built from the tree, and run in namespaces as an engine would run it.

No engine is needed: the program of the image runs in its files with what an engine sets up, a
network namespace, a read-only root, and no root's rights. ``test_compose.py`` has an engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tools import container, kcat
from tools.places import ToolAbsent, require

SIZE_BYTES_MAX = 450 * 2**20
USER = 10_001
NODE, CLIENT = "tidelog-img-node", "tidelog-img-client"
NODE_ADDRESS, CLIENT_ADDRESS = "198.18.7.1", "198.18.7.2"  # RFC 2544, of these namespaces only
PORT, HTTP_PORT = 9092, 9644
READY_SECONDS_MAX = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.packages, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image(_built_image: None) -> Iterator[Path]:
    """Yield the image's files."""
    name, files = container.mount_image()
    yield files
    container.remove(name)


@pytest.fixture
def namespaces() -> Iterator[None]:
    """Two network namespaces, one for the node, one for its client, with a cable between them."""
    try:
        ip = require("ip")
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    _remove_namespaces(ip)
    for name in (NODE, CLIENT):
        subprocess.run([ip, "netns", "add", name], check=True)
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True)
    cable = [ip, "link", "add", "node0", "netns", NODE, "type", "veth"]
    subprocess.run([*cable, "peer", "name", "client0", "netns", CLIENT], check=True)
    for name, device, address in (
        (NODE, "node0", NODE_ADDRESS),
        (CLIENT, "client0", CLIENT_ADDRESS),
    ):
        subprocess.run([ip, "-n", name, "addr", "add", f"{address}/30", "dev", device], check=True)
        subprocess.run([ip, "-n", name, "link", "set", device, "up"], check=True)
    yield
    _remove_namespaces(ip)


def _remove_namespaces(ip: str) -> None:
    for name in (NODE, CLIENT):
        subprocess.run([ip, "netns", "delete", name], check=False, capture_output=True)


def test_the_image_is_small_and_has_no_root_user(image: Path) -> None:
    assert container.size_bytes(image) < SIZE_BYTES_MAX
    told = container.configuration()
    assert told["User"] == f"{USER}:{USER}"
    assert told["Entrypoint"] == ["tidelog"]
    assert not list(image.glob("opt/tidelog/bin/pip*"))
    assert not list(image.glob("usr/bin/*gcc*"))


def test_the_hot_path_is_compiled(image: Path) -> None:
    found = list(image.glob("opt/tidelog/lib/python*/site-packages/tidelog__mypyc.*.so"))
    assert len(found) == 1


def test_the_image_serves_kcat_of_another_host(
    image: Path, namespaces: None, tmp_path: Path
) -> None:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed: run `make tools`")
    program, environment = found
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    arguments = ["up", "--host=0.0.0.0", f"--advertised-host={NODE_ADDRESS}", "--http-host=0.0.0.0"]
    process = _run_in_image(image, data, ["/opt/tidelog/bin/tidelog", *arguments], tmp_path)
    try:
        _wait_ready(process, tmp_path)
        base = ["ip", "netns", "exec", CLIENT, str(program), "-b", f"{NODE_ADDRESS}:{PORT}"]
        sent = "".join(f"key{number}:value {number}\n" for number in range(100))
        subprocess.run(
            [*base, "-P", "-t", "flights", "-K:"],
            input=sent.encode(),
            env=environment,
            check=True,
            timeout=60,
        )
        read = subprocess.run(
            [*base, "-C", "-t", "flights", "-e", "-q", "-K:"],
            env=environment,
            check=True,
            timeout=60,
            capture_output=True,
        )
        assert read.stdout.decode() == sent
        assert _users_of_processes() == {USER}
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(timeout=60)
    assert status == 0, (tmp_path / "log").read_text()


def _run_in_image(
    image: Path, data: Path, command: Sequence[str], tmp_path: Path
) -> subprocess.Popen[bytes]:
    """Start a program with the image's files as a read-only root, as a user without rights."""
    files = str(image)
    script = " && ".join(
        (
            f"mount --bind {files} {files}",
            f"mount --bind {data} {files}/var/lib/tidelog",
            f"mount -t tmpfs tmpfs {files}/tmp",
            f"mount --rbind /dev {files}/dev",
            f"mount -t proc proc {files}/proc",
            f"mount -o remount,ro,bind {files}",
            f"exec chroot --userspec={USER}:{USER} {files} /usr/bin/env -i"
            f" PATH=/opt/tidelog/bin:/usr/bin HOME=/nonexistent PYTHONDONTWRITEBYTECODE=1"
            f" TIDELOG_DATA_DIR=/var/lib/tidelog {' '.join(command)}",
        )
    )
    unshare = [require("unshare"), "--mount", "--propagation=private", "sh", "-c", script]
    log = (tmp_path / "log").open("wb")
    with log:
        return subprocess.Popen(
            ["ip", "netns", "exec", NODE, *unshare], stdout=log, stderr=subprocess.STDOUT
        )


def _wait_ready(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Wait as a probe does: from the host of the client, until the node is ready."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    url = f"http://{NODE_ADDRESS}:{HTTP_PORT}/readyz"
    ask = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=2)"
    while time.monotonic() < deadline:
        assert process.poll() is None, (tmp_path / "log").read_text()
        asked = subprocess.run(
            ["ip", "netns", "exec", CLIENT, shutil.which("python3") or "python3", "-c", ask],
            check=False,
            capture_output=True,
        )
        if asked.returncode == 0:
            return
        time.sleep(0.2)
    pytest.fail(f"not ready: {(tmp_path / 'log').read_text()}")


def _users_of_processes() -> set[int]:
    """Return the users whose processes run in the node's network namespace."""
    pids = subprocess.run(["ip", "netns", "pids", NODE], check=True, capture_output=True, text=True)
    found = set()
    for pid in pids.stdout.split():
        with suppress(FileNotFoundError):
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found
