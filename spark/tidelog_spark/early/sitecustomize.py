"""Connects the Python process of a stream's source to Spark before it imports pyspark.

Spark waits ten seconds for that process, and no setting changes it. The process connects when it
has imported pyspark, pandas and pyarrow: after a second of CPU, which takes longer than ten seconds
on a busy machine, or from a cold disk.

Python runs a module of this name at its start, from the first folder of its path that has one.
``register`` puts this folder into the path of the source's processes, of no others. The connection
is made here, and handed to pyspark when it asks for one. If that fails, pyspark connects as ever.
Then the ``sitecustomize`` runs that this one hides.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

# The only process of Spark's driver that is not forked by a daemon, for which Spark waits longer.
PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
UTIL = "pyspark.util"
SECONDS_MAX = 15.0  # as pyspark's
ANSWER = b"ok"

Connection = tuple[Any, socket.socket]  # a file and its socket, as pyspark's


def connect_early() -> None:
    """Connect, and prepare the import of pyspark to use the connection."""
    if PROCESS not in sys.orig_argv:
        return
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    port = os.environ.get("PYTHON_WORKER_FACTORY_PORT")
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    try:
        if path is not None:
            found = _connected(socket.AF_UNIX, path)
        elif port is not None and secret is not None:
            is_newer = os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true"
            address = ("::1" if is_newer else "127.0.0.1", int(port))
            found = _connected(socket.AF_INET6 if is_newer else socket.AF_INET, address)
            _log_in(found, secret)
        else:
            return
    except (OSError, ValueError):
        return
    sys.meta_path.insert(0, _Finder(found))


def run_hidden(folder: str) -> None:
    """Run the module of this name that Python would have run without this folder."""
    rest = [one for one in sys.path if os.path.realpath(one) != os.path.realpath(folder)]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _connected(family: int, address: Any) -> Connection:
    found = socket.socket(family, socket.SOCK_STREAM)
    found.settimeout(SECONDS_MAX)
    try:
        found.connect(address)
    except OSError:
        found.close()
        raise
    return found.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))), found


def _log_in(connection: Connection, secret: str) -> None:
    """Say the secret, and read Spark's answer: both are a length of four bytes and a text."""
    file = connection[0]
    data = secret.encode()
    file.write(struct.pack("!i", len(data)) + data)
    file.flush()
    answer = file.read(4 + len(ANSWER))
    if answer[4:] != ANSWER:
        connection[1].close()
        raise OSError(f"Spark's answer is {answer!r}")


class _Finder:
    """Finds ``pyspark.util``, once, and gives it the connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != UTIL:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._connection)  # type: ignore[assignment]
        return spec


class _Loader:
    """Loads the module as its own loader does, then replaces how it connects."""

    def __init__(self, loader: Any, connection: Connection) -> None:
        self._loader = loader
        self._connection: Connection | None = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # As if this loader had never been.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        connect = module.local_connect_and_auth

        def connect_once(conn_info: Any, auth_secret: Any) -> Any:
            found, self._connection = self._connection, None
            return connect(conn_info, auth_secret) if found is None else found

        module.local_connect_and_auth = connect_once  # type: ignore[attr-defined]


connect_early()
run_hidden(os.path.dirname(__file__))  # noqa: PTH120  # pathlib takes time to import
