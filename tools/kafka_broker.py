"""Runs Apache Kafka's broker from Maven Central: nodes that are broker and controller, mostly one.

It listens on 127.0.0.1 only, stores its data in the given folder, and ends with the process that
started it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tools import maven
from tools.java_options import QUICK_JAVA
from tools.places import TOOLS_DIR, ToolAbsent, require, run
from tools.ports import free_ports
from tools.server_process import ServerProcess, is_listening, running

VERSION = "4.1.2"
START_SECONDS_MAX = 120.0  # of a machine that has other work, too
BROKER_ID = 1
_CLUSTER_ID = "dGlkZWxvZy1jb21wYXJlZA"  # any 16 bytes in base64
_ROOT = TOOLS_DIR / f"kafka-broker-{VERSION}"
_PROPERTIES = "server.properties"
_PORT = "port"
_LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# The options of Kafka's own start script.
SERVER_JAVA_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    _LOG_LEVEL,
)
_JAVA_OPTIONS = ("-Xmx512m", *QUICK_JAVA, _LOG_LEVEL)


def install() -> None:
    """Make ``serve`` and ``run_tool`` work."""
    require("java")
    if class_path() is None:
        maven.fetch_jars(
            _ROOT,
            f"org.apache.kafka:kafka_2.13:{VERSION}",
            f"org.apache.kafka:kafka-tools:{VERSION}",
            "org.slf4j:slf4j-simple:1.7.36",
        )


def class_path() -> str | None:
    """Return the value of java's ``-cp``, or ``None`` if jars are missing."""
    return maven.class_path(_ROOT, f"kafka_2.13-{VERSION}.jar", f"kafka-tools-{VERSION}.jar")


@contextmanager
def serve(
    folder: Path,
    config: Mapping[str, str] | None = None,
    *,
    features: Mapping[str, int] | None = None,
    second_listener: tuple[int, int] | None = None,
    java_options: Sequence[str] = (),
    classes: Path | None = None,
) -> Iterator[int]:
    """Run an empty broker with its data below ``folder``; yield its port.

    ``config`` is for ``server.properties``. ``features`` has the levels of features that are
    disabled by default. ``second_listener`` is the port of a further listener, and the port
    that it advertises (a proxy's). ``java_options`` are added. ``classes`` is a folder of plugins.
    Raises ``ToolAbsent``.
    """
    format_storage(folder, config, features=features, second_listener=second_listener)
    with run_formatted(folder, (*_JAVA_OPTIONS, *java_options), classes=classes) as broker:
        yield broker.port


def format_storage(
    folder: Path,
    config: Mapping[str, str] | None = None,
    *,
    features: Mapping[str, int] | None = None,
    second_listener: tuple[int, int] | None = None,
) -> None:
    """Prepare an empty broker below ``folder``; the arguments are those of ``serve``."""
    port = free_ports(2)
    lines = _properties(folder / "data", port, {BROKER_ID: port + 1})
    if second_listener is not None:
        own_port, advertised_port = second_listener
        lines["listeners"] += f",SECOND://127.0.0.1:{own_port}"
        lines["advertised.listeners"] += f",SECOND://127.0.0.1:{advertised_port}"
        lines["listener.security.protocol.map"] = ",".join(
            f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", "SECOND")
        )
    _format(folder, port, lines | dict(config or {}), features)


def format_cluster(folders: Sequence[Path], config: Mapping[str, str] | None = None) -> None:
    """Prepare empty brokers of one cluster, each below its folder.

    None serves before most of them run: see ``serves`` of ``run_formatted``.
    """
    ports = {broker_id: free_ports(2) for broker_id in range(BROKER_ID, BROKER_ID + len(folders))}
    controllers = {broker_id: port + 1 for broker_id, port in ports.items()}
    for folder, (broker_id, port) in zip(folders, ports.items(), strict=True):
        lines = _properties(folder / "data", port, controllers, broker_id)
        _format(folder, port, lines | dict(config or {}), None)


def _format(
    folder: Path, port: int, lines: Mapping[str, str], features: Mapping[str, int] | None
) -> None:
    java, properties = _java(), folder / _PROPERTIES
    folder.mkdir(parents=True, exist_ok=True)
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    shutil.rmtree(folder / "data", ignore_errors=True)
    levels = [f"--feature={name}={level}" for name, level in (features or {}).items()]
    storage_tool = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID]
    run([*storage_tool, "-c", properties, *levels])
    (folder / _PORT).write_text(str(port))


def run_formatted(
    folder: Path,
    java_options: Sequence[str] = _JAVA_OPTIONS,
    *,
    classes: Path | None = None,
    serves: Callable[[int], bool] = is_listening,
) -> AbstractContextManager[ServerProcess]:
    """Run the broker that was prepared below the folder, with the data that it has stored since.

    ``serves`` returns for its port whether it has started. Raises ``ToolAbsent``.
    """
    return running(
        "Apache Kafka",
        [*_java(java_options, classes), "kafka.Kafka", str(folder / _PROPERTIES)],
        port=int((folder / _PORT).read_text()),
        start_seconds_max=START_SECONDS_MAX,
        log_path=folder / "broker.log",
        serves=serves,
    )


def run_tool(main_class: str, *arguments: str, timeout: float = 60.0) -> str:
    """Run one of Kafka's command line tools; return its standard output. Raises ``ToolAbsent``.

    A failure raises ``subprocess.CalledProcessError`` with the output.
    """
    done = subprocess.run(
        [*_java(), main_class, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode != 0:
        raise subprocess.CalledProcessError(
            done.returncode, [main_class, *arguments], done.stdout, done.stderr
        )
    return done.stdout


def _java(options: Sequence[str] = _JAVA_OPTIONS, classes: Path | None = None) -> list[str]:
    path = class_path()
    if path is None:
        raise ToolAbsent("Apache Kafka's broker is not installed: run `make tools`")
    if classes is not None:
        path = f"{path}:{classes}"
    return [require("java"), *options, "-cp", path]


def _properties(
    data: Path, port: int, controllers: Mapping[int, int], broker_id: int = BROKER_ID
) -> dict[str, str]:
    """Return a broker's settings. ``controllers`` are the controllers' ports by broker."""
    voters = ",".join(f"{voter}@127.0.0.1:{own}" for voter, own in controllers.items())
    own_controller = f"CONTROLLER://127.0.0.1:{controllers[broker_id]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker_id),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},{own_controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
