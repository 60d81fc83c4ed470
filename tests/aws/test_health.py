"""What a launcher makes of a node that answers, one that hangs, and one that is full."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.aws.machines import NODE_PROGRAMS
from tests.support.certificates import Authority
from tests.support.node_process import NodeProcess
from tools.ports import free_port


@pytest.fixture(scope="module")
def health() -> Iterator[ModuleType]:
    sys.path.insert(0, str(NODE_PROGRAMS))
    import tidelog_health

    yield tidelog_health
    sys.path.remove(str(NODE_PROGRAMS))


@contextmanager
def listening(does: Callable[[socket.socket], object]) -> Iterator[int]:
    """Listen, and do this with the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                does(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_node_answers_without_a_login_and_with_tls(health: ModuleType, tmp_path: Path) -> None:
    authority, open_port, secure_port = Authority(tmp_path / "authority"), free_port(), free_port()
    config = {
        "listeners": f"PLAINTEXT://127.0.0.1:{open_port},SASL_SSL://127.0.0.1:{secure_port}",
        "ssl.keystore.location": str(authority.node_pem()),
    }
    node = NodeProcess(tmp_path / "node", config=config)
    node.port = open_port
    with node:
        for port, has_tls in ((open_port, False), (secure_port, True)):
            assert health.Probe("127.0.0.1", port, has_tls).ask() is health.Health.SERVES


def test_a_kernel_that_takes_connections_is_no_answer(health: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1]
        for has_tls in (False, True):
            probe = health.Probe("127.0.0.1", port, has_tls)
            assert probe.ask(0.05) is health.Health.IS_SILENT
    assert health.Probe("127.0.0.1", port, False).ask() is health.Health.IS_SILENT


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_node_that_closes_the_connection_is_at_work(health: ModuleType, has_tls: bool) -> None:
    with listening(lambda connection: connection.recv(1)) as port:
        assert health.Probe("127.0.0.1", port, has_tls).ask() is health.Health.IS_AT_WORK


def test_systemd_hears_nothing_before_the_first_answer(health: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.setblocking(False)
        notifier = health.Notifier({"NOTIFY_SOCKET": path})
        notifier.note(health.Health.IS_SILENT)
        notifier.note(health.Health.IS_AT_WORK)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        notifier.note(health.Health.SERVES)
        assert systemd.recv(100).startswith(b"READY=1")
        assert systemd.recv(100) == b"WATCHDOG=1"
        notifier.note(health.Health.IS_AT_WORK)
        assert systemd.recv(100) == b"WATCHDOG=1"
    health.Notifier({}).note(health.Health.SERVES)  # nobody listens, which is no error
