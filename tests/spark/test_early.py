"""A Python process of Spark connects before it imports pyspark."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidelog_spark.source import EARLY

SECONDS_MAX = 60.0
SECRET = "the secret"
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
# What of pyspark the process imports. It waits for a file, as for a slow disk.
PYSPARK = {
    "__init__.py": """
import os, time
while not os.path.exists(os.environ["TEST_MAY_IMPORT"]):
    time.sleep(0.005)
""",
    "util.py": """
def local_connect_and_auth(conn_info, auth_secret):
    return f"own {conn_info} {auth_secret}", None
""",
    "sql/__init__.py": "",
    "sql/streaming/__init__.py": "",
    "sql/streaming/python_streaming_source_runner.py": """
import os
from pyspark.util import local_connect_and_auth
import pyspark.util, sitecustomize
given = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH"), os.environ.get("TEST_PORT")
for _ in range(2):
    file, connection = local_connect_and_auth(next(filter(None, given)), "asked")
    if connection is not None:
        connection.settimeout(None)
        file.write(b"from the runner")
        file.flush()
        file = "early"
    print(file, sitecustomize.MARK, pyspark.util.__loader__.__class__.__name__)
""",
}
PYSPARK["daemon.py"] = PYSPARK["sql/streaming/python_streaming_source_runner.py"]


@contextmanager
def process(
    folder: Path, *, module: str = RUNNER, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process as Spark starts it, which imports pyspark once ``may_import`` is called."""
    for name, text in PYSPARK.items():
        path = folder / "pyspark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "sitecustomize.py").write_text("MARK = 'hidden'\n")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON_WORKER")
    }
    found = subprocess.Popen(
        [sys.executable, "-m", module],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join([EARLY, str(folder)]),
            "TEST_MAY_IMPORT": str(folder / "may_import"),
            **variables,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield found
    finally:
        found.kill()
        found.wait()
        assert found.stdout is not None
        found.stdout.close()


def may_import(folder: Path) -> None:
    (folder / "may_import").touch()


def printed(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines of the process, which ends well."""
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0
    return out.splitlines()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(SECONDS_MAX)
        yield found


def given(server: socket.socket) -> dict[str, str]:
    port = str(server.getsockname()[1])
    return {
        "PYTHON_WORKER_FACTORY_PORT": port,
        "PYTHON_WORKER_FACTORY_SECRET": SECRET,
        "TEST_PORT": port,
    }


def accepted(server: socket.socket, answer: bytes) -> socket.socket:
    """Return the connection after it has said the secret and got the answer."""
    connection, _ = server.accept()
    connection.settimeout(SECONDS_MAX)
    wanted = struct.pack("!i", len(SECRET)) + SECRET.encode()
    assert connection.recv(len(wanted), socket.MSG_WAITALL) == wanted
    connection.sendall(struct.pack("!i", len(answer)) + answer)
    return connection


def test_a_process_connects_before_it_imports_pyspark(tmp_path, server):
    with process(tmp_path, **given(server)) as started, accepted(server, b"ok") as connection:
        may_import(tmp_path)
        port = server.getsockname()[1]
        assert printed(started) == [
            "early hidden SourceFileLoader",
            f"own {port} asked hidden SourceFileLoader",
        ]
        assert connection.recv(99) == b"from the runner"


def test_a_process_connects_to_a_unix_domain_socket(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        server.settimeout(SECONDS_MAX)
        with process(tmp_path, PYTHON_WORKER_FACTORY_SOCK_PATH=os.fspath(path)) as started:
            connection, _ = server.accept()
            with connection:
                may_import(tmp_path)
                assert printed(started)[0] == "early hidden SourceFileLoader"
                connection.settimeout(SECONDS_MAX)
                assert connection.recv(99) == b"from the runner"


@pytest.mark.parametrize("answer", [b"no", b""])
def test_pyspark_connects_itself_if_spark_refuses_the_secret(tmp_path, server, answer):
    with process(tmp_path, **given(server)) as started, accepted(server, answer) as connection:
        connection.shutdown(socket.SHUT_WR)
        may_import(tmp_path)
        assert printed(started)[0].startswith("own ")


def test_pyspark_connects_itself_if_nothing_listens(tmp_path, server):
    variables = given(server)
    server.close()
    with process(tmp_path, **variables) as started:
        may_import(tmp_path)
        assert printed(started)[0].startswith("own ")


@pytest.mark.parametrize("name", ["daemon", "no port"])
def test_no_other_process_connects_early(tmp_path, server, name):
    """Neither a daemon, whose variables may be those of a process that started it."""
    variables = given(server)
    if name == "no port":
        del variables["PYTHON_WORKER_FACTORY_PORT"]
    module = "pyspark.daemon" if name == "daemon" else RUNNER
    with process(tmp_path, module=module, **variables) as started:
        may_import(tmp_path)
        assert printed(started)[0].startswith("own ")
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.accept()
