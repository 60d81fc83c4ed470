"""``tidelog up`` as a person uses it."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tidelog.settings.properties_file import read_properties

from tests.support.command import COMMAND, Outcome, environment_without, tidelog
from tests.support.console import Browser
from tests.support.http_pages import readiness
from tests.support.waiting import eventually
from tools.ports import free_ports

READY_SECONDS_MAX = 60
# What comes with other extras than ``node``.
NOT_NEEDED = ("aioboto3", "boto3", "numpy", "pandas", "pyarrow", "pyspark")


@contextmanager
def running(
    data_dir: Path, port: int, *options: str, has_console: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``tidelog up``, ready when the block begins."""
    console = ("--console-port", "0") if has_console else ("--no-console",)
    # Two clusters that start at the same moment may both find the usual port free.
    http = () if "--http-port" in options else ("--http-port", "0")
    process = subprocess.Popen(
        [
            COMMAND,
            "up",
            "--port",
            str(port),
            "--data-dir",
            str(data_dir),
            *console,
            *http,
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment_without(Path(mkdtemp(dir=data_dir.parent)) / "hidden", *NOT_NEEDED),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], READY_SECONDS_MAX)
        assert ready, "not ready in time"
        line = process.stdout.readline()
        assert b"ready on 127.0.0.1:%d" % port in line, line or process.stderr.read()
        assert line.count(b", http on 127.0.0.1:") == 1
        secured = f"--command-config {data_dir}/secure/client.properties "
        login = secured if "--secure" in options else ""
        assert process.stdout.readline().decode() == (
            f"try: echo hello | tidelog {login}produce greetings -b 127.0.0.1:{port}\n"
        )
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_cluster_of_two_serves_and_stops_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """Records outlive it: the same directory brings them back."""
    data_dir, port = tmp_path / "data", free_ports(4)
    options = ("--nodes", "2", "--http-port", str(port + 2))
    options += ("--log-format", "json", "--log-level", "info")
    with running(data_dir, port, *options) as process:
        for broker_id, http_port in ((1, port + 2), (2, port + 3)):
            status, body = readiness(f"127.0.0.1:{http_port}")
            assert (status, body["broker_id"]) == (200, broker_id)
        second = f"127.0.0.1:{port + 1}"
        tidelog("produce", "t", bootstrap=second, given=b"hello\n")
        process.send_signal(number)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, b"")
        lines = [json.loads(line) for line in errors.splitlines()]
        assert {line["process"] for line in lines} >= {"node-1", "node-2"}
        assert {line["level"] for line in lines} == {"INFO"}
    for listener in range(port, port + 4):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener), timeout=60).close()
    if number is signal.SIGINT:
        with running(data_dir, port, "--nodes", "2"):
            read = tidelog(
                "consume", "t", "--from-beginning", "-n", 1, bootstrap=f"127.0.0.1:{port}"
            )
            assert read.out == b"hello\n"


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--secure",), marks=pytest.mark.slow)], ids=["open", "secure"]
)
def test_a_console_shows_the_cluster_and_ends_with_it(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    data_dir, port = tmp_path / "data", free_ports(1)
    with running(data_dir, port, *options, has_console=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("console: http://127.0.0.1:"), line
        browser = Browser(line.strip().rpartition("/")[2])
        if options:
            assert browser.get("/").headers["location"] == "/login"
            password = read_properties(data_dir / "secure" / "librdkafka.properties")[
                "sasl.password"
            ]
            assert browser.log_in("admin", password).status == 303
        assert f"127.0.0.1:{port}" in browser.get("/").text
        assert "None found" in browser.get("/faults").text
        process.terminate()
        process.wait(30)
        with pytest.raises(ConnectionRefusedError):
            browser.get("/")


@pytest.mark.slow  # tests/node/monitoring/test_probes.py and tests/console have the twins
def test_two_clusters_that_start_at_once_share_the_usual_ports(tmp_path: Path) -> None:
    """Each finds the ports of probes and console free, and one of them comes second."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                started("--port", str(free_ports(1)), "--data-dir", str(tmp_path / name))
            )
            for name in "ab"
        ]
        http, consoles = set[str](), set[str]()
        for process in processes:
            ready, _, console = (next_line(process) for _ in range(3))
            http.add(ready.partition(", http on ")[2])
            consoles.add(console.removeprefix("console: http://"))
        assert len(http) == len(consoles) == 2
        for address in http:
            assert readiness(address)[0] == 200
        for address in consoles:
            assert Browser(address).get("/topics").status == 200


@pytest.mark.slow  # tests/node/local_cluster/test_supervisor.py has a twin
def test_a_console_that_is_started_again_is_announced_again(tmp_path: Path) -> None:
    options = ("--port", str(free_ports(1)), "--data-dir", str(tmp_path / "data"))
    with started(*options, "--console-port", "0", "--no-http") as process:
        addresses = set[str]()
        lines = [next_line(process) for _ in range(3)]
        addresses.add(lines[-1])
        (console,) = [one for one in children(process.pid) if runs(one, b"tidelog_console")]
        os.kill(console, signal.SIGKILL)
        addresses.add(next_line(process))
        assert len(addresses) == 2
        address = (addresses - {lines[-1]}).pop().removeprefix("console: http://")
        assert Browser(address).get("/topics").status == 200


@contextmanager
def started(*options: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``tidelog up`` with its usual ports, not ready yet; ``before``: in another program."""
    process = subprocess.Popen(
        [*before, COMMAND, "up", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def next_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], READY_SECONDS_MAX)
    assert ready, "nothing more is said"
    return read_line(process.stdout.fileno())


def read_line(descriptor: int) -> str:
    """Return a line, read without a buffer that ``select`` would not know of."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        assert byte, line
        line += byte
    return line.decode().strip()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def runs(pid: int, module: bytes) -> bool:
    return module in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = tidelog("up", "--port", port, "--data-dir", tmp_path / "data", status=1)
        assert "give another --port" in outcome.errors
        assert f"port {port}: Address already in use" in outcome.errors
        given = ("--port", free_ports(1), "--http-port", port, "--data-dir", tmp_path / "data")
        outcome = tidelog("up", *given, status=1)
        given = ("--port", free_ports(1), "--console-port", port, "--data-dir", tmp_path / "data")
        wanted = tidelog("up", *given, status=1)
    assert f"port {port}: Address already in use" in outcome.errors
    assert "give another --http-port" in outcome.errors
    assert f"port {port}: Address already in use" in wanted.errors
    assert "give another --console-port" in wanted.errors
    assert not (tmp_path / "data").exists()


@pytest.mark.slow  # tests/node/local_cluster/test_cluster_settings.py has what each node is told
def test_cluster_on_all_addresses_advertises_the_given_one(tmp_path: Path) -> None:
    port = free_ports(1)
    options = ("--host", "0.0.0.0", "--advertised-host", "127.0.0.1")
    with running(tmp_path / "data", port, *options) as process:
        tidelog("produce", "t", bootstrap=f"localhost:{port}", given=b"hello\n")
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert errors.startswith(
        b"tidelog: anyone who can reach 0.0.0.0 may read and write everything: give --secure\n"
    )


@pytest.mark.slow  # tests/node/local_cluster/test_cluster_size.py has the requests
def test_nodes_that_are_added_lead_and_those_that_leave_hand_over(tmp_path: Path) -> None:
    """Diskless topics need nothing else; what only a leaving node has is named before."""
    data_dir, port = tmp_path / "data", free_ports(3)
    address = f"127.0.0.1:{port}"

    def scale(count: int, *options: str, status: int = 0) -> Outcome:
        arguments = ("node", "scale", count, "--data-dir", data_dir, *options)
        return tidelog(*arguments, bootstrap=address, status=status)

    def leaders() -> set[int]:
        nodes = tidelog("node", "list", "--json", bootstrap=address).document
        return {node["node"] for node in nodes if node["leaders"]}

    with running(data_dir, port):
        create = ("topic", "create", "d", "--partitions", 6, "--config", "diskless.enable=true")
        tidelog(*create, bootstrap=address)
        tidelog("produce", "d", bootstrap=address, given=b"one\ntwo\n")
        assert scale(3).lines == ["node 2 has joined", "node 3 has joined", "3 nodes run"]
        eventually(lambda: leaders() == {1, 2, 3}, "each has its share")
        tidelog("topic", "create", "r", "--partitions", 3, bootstrap=address)
        tidelog("produce", "d", bootstrap=address, given=b"three\n")
        refused = scale(1, status=1)
        assert "only nodes that would leave have r-" in refused.errors
        assert "tidelog topic reassign" in refused.errors
        tidelog("topic", "delete", "r", bootstrap=address)
        assert scale(1).lines == ["node 3 has left", "node 2 has left", "1 node runs"]
        assert leaders() == {1}
        read = tidelog("consume", "d", "--from-beginning", "-n", 3, bootstrap=address)
        assert sorted(read.lines) == ["one", "three", "two"]
        missing = tmp_path / "missing"
        missing.mkdir()
        elsewhere = tidelog(
            *("node", "scale", 2, "--data-dir", missing), bootstrap=address, status=1
        )
        assert "no cluster of `tidelog up` can be reached" in elsewhere.errors


@pytest.mark.slow  # tests/node/processes/test_init_process.py has the twin
def test_in_a_container_nothing_is_left_of_a_killed_node(tmp_path: Path) -> None:
    """Its workers lose their parent, and become children of the container's first process."""
    alone = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which(alone[0]) is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("no namespaces of processes here")
    port = free_ports(1)
    address = f"127.0.0.1:{port}"
    options = ("--port", str(port), "--data-dir", str(tmp_path / "data"))
    options = (*options, "--http-port", "0", "--no-console")
    with started(*options, before=alone) as process, ExitStack() as stack:
        stack.callback(process.kill)  # SIGTERM does not end ``unshare``
        next_line(process)
        (first,) = children(process.pid)
        (program,) = children(first)
        (node,) = [one for one in children(program) if runs(one, b"tidelog_node")]
        tidelog("topic", "create", "d", "--config", "diskless.enable=true", bootstrap=address)
        tidelog("produce", "d", bootstrap=address, given=b"one\n")
        workers = children(node)
        assert workers
        os.kill(node, signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{one}").exists() for one in (node, *workers)))
        read = tidelog("consume", "d", "--from-beginning", "-n", 1, bootstrap=address)
        assert read.lines == ["one"]
        os.kill(first, signal.SIGTERM)
        assert process.wait(60) == 0
