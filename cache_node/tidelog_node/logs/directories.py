"""The node's data directory: one process at a time, one directory a partition.

    <data dir>/lock                            locked while a node runs
    <data dir>/node                            the owner: cluster id, broker id
    <data dir>/clean-shutdown                  exists after every log was closed cleanly
    <data dir>/<topic>-<partition>/            a log
    <data dir>/<topic>-<partition>/topic-<id>  empty; its name is the id of the log's topic
    <data dir>/<topic>-<partition>.<id>-stray  a log that was damaged, or of a topic that the
                                               cluster does not know
    <data dir>/quarantine/<topic>-<partition>/ damaged segment files that were replaced

A log with an unexpected topic id is moved aside and not removed: it may be the only copy of
its records, so a person decides. It is removed only if the cluster has recorded that the
topic was deleted. The file with the topic's id is created before the log's first file, so a
directory without it holds no log. The file is empty, so it becomes durable with the first
fsync of the directory, as do the names of the log's files.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Protocol
from uuid import UUID, uuid4

from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import sync_directory
from tidelog_core.log.deletion import rename_deleted
from tidelog_core.log.local_log import remove_deleted_logs
from tidelog_core.log.paths import CLEAN_SHUTDOWN_FILE, LOG_SUFFIX
from tidelog_core.model import TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
NODE_FILE = "node"
TOPIC_ID_PREFIX = "topic-"
STRAY_SUFFIX = "-stray"
QUARANTINE_DIRECTORY = "quarantine"
STRAY_TOPIC_LENGTH_MAX = 190  # of the topic's name; file systems take 255 with all the rest


class HeldPartition(Protocol):
    """The identity of a partition, also after a topic of the same name has replaced its own."""

    @property
    def partition(self) -> TopicPartition:
        """The topic's name and the partition's index."""

    @property
    def topic_id(self) -> UUID:
        """The topic's id."""


class DirectoryInUse(StorageError):
    """Another process has locked the data directory."""

    hint = "stop that node, or give this one a data directory of its own"

    def __init__(self, path: Path) -> None:
        super().__init__(f"another node uses the data directory {path}")


class DirectoryOfAnother(StorageError):
    """The data directory has the logs of another node, or of another cluster."""

    hint = "give the broker id and the metadata store that it says, or another data directory"


class LogDirectories:
    """The data directory of one running node."""

    def __init__(self, path: Path) -> None:
        """Lock the directory; create it if there is none.

        Raises ``DirectoryInUse`` if another process has locked it.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DirectoryInUse(path) from None
        remove_deleted_logs(path)
        mark = path / CLEAN_SHUTDOWN_FILE
        self.was_clean = mark.exists() or not any(path.glob(f"*/{TOPIC_ID_PREFIX}*"))
        mark.unlink(missing_ok=True)
        # Durable: if a power cut restored the mark, the next start would trust unclean logs.
        sync_directory(path)

    @property
    def is_new(self) -> bool:
        """Whether the directory has no owner yet."""
        return not (self.path / NODE_FILE).exists()

    def take_possession(self, cluster_id: str, broker_id: int) -> None:
        """Record the owner if none is recorded. Durable on return.

        Raises ``DirectoryOfAnother`` if it is another node's or another cluster's.
        """
        path, line = self.path / NODE_FILE, _node_line(cluster_id, broker_id)
        try:
            found = path.read_text()
        except FileNotFoundError:
            _write_durably(path, line)
            return
        if found != line:
            raise DirectoryOfAnother(
                f"{path} says {found.strip()!r}: the directory is not of broker {broker_id} "
                f"of cluster {cluster_id}"
            )

    def claim(self, partition: TopicPartition, topic_id: UUID) -> Path:
        """Return the partition's directory; create and label it if needed.

        A directory of another topic id with the same name is moved aside first.
        """
        directory = self.path / str(partition)
        label = _label(directory, topic_id)
        if label.exists():
            return directory
        if directory.exists():
            self._move_aside(directory)
        directory.mkdir()
        label.touch()
        return directory

    def holds(self, held: HeldPartition) -> bool:
        """Return whether the partition has a directory, labelled with its topic id."""
        return _label(self.path / str(held.partition), held.topic_id).exists()

    def has_log(self, held: HeldPartition) -> bool:
        """Return whether the partition has such a directory, and a log was ever opened in it."""
        names = _names(self.path / str(held.partition))
        is_its = f"{TOPIC_ID_PREFIX}{held.topic_id}" in names
        return is_its and any(name.endswith(LOG_SUFFIX) for name in names)

    def was_closed(self, held: HeldPartition) -> bool:
        """Return whether the partition has no log, or one that was closed in order."""
        names = _names(self.path / str(held.partition))
        return CLEAN_SHUTDOWN_FILE in names or not any(name.endswith(LOG_SUFFIX) for name in names)

    def quarantine(self, held: HeldPartition) -> Path:
        """Return the directory for the log's damaged segment files. It may not exist yet."""
        return self.path / QUARANTINE_DIRECTORY / str(held.partition)

    def set_aside(self, held: HeldPartition) -> Path:
        """Rename a damaged log's directory, for a person to examine; return the new path."""
        directory = self.path / str(held.partition)
        topic, _, partition = directory.name.rpartition("-")
        name = f"{topic[:STRAY_TOPIC_LENGTH_MAX]}-{partition}.{uuid4().hex}{STRAY_SUFFIX}"
        stray = directory.with_name(name)
        directory.rename(stray)
        sync_directory(self.path)
        return stray

    def rename_deleted(self, held: HeldPartition) -> Path:
        """Rename the partition's directory; return the new path, for ``remove_directories``."""
        return rename_deleted(self.path / str(held.partition))

    def clear_out(
        self,
        labelled: Iterable[tuple[str, UUID]],
        known: Container[UUID],
        deleted: Container[UUID],
        *,
        is_unreadable: Callable[[str], bool],
    ) -> list[Path]:
        """Rename the logs of topics that are not ``known``. ``labelled`` are all that there are.

        Returns those of ``deleted`` topics, for ``remove_directories``. Other logs are moved
        aside. A log stays if ``is_unreadable`` says that the topic of its name exists but cannot
        be read: the log may belong to it.
        """
        renamed = []
        for directory, topic_id in labelled:
            if topic_id in known or directory.endswith(STRAY_SUFFIX):
                continue
            if topic_id in deleted:
                renamed.append(rename_deleted(self.path / directory))
            elif is_unreadable(directory.rpartition("-")[0]):
                logger.warning(
                    "log kept, its topic cannot be read", extra={"path": str(self.path / directory)}
                )
            else:
                self._move_aside(self.path / directory)
        return renamed

    def labelled(self) -> list[tuple[str, UUID]]:
        """Return the names of the labelled directories, with the topics' ids."""
        return [
            (directory, topic_id)
            for directory in _names(self.path)
            for name in _names(f"{self.path}/{directory}")
            if (topic_id := _topic_id(name)) is not None
        ]

    def mark_clean(self) -> None:
        """Record that every log was closed cleanly. Nothing may be appended afterwards."""
        (self.path / CLEAN_SHUTDOWN_FILE).touch()

    def _move_aside(self, directory: Path) -> None:
        labels = [path.name for path in directory.glob(f"{TOPIC_ID_PREFIX}*")]
        if not labels and not any(directory.iterdir()):
            directory.rmdir()
            return
        owner = labels[0].removeprefix(TOPIC_ID_PREFIX) if labels else uuid4().hex
        topic, _, partition = directory.name.rpartition("-")
        name = f"{topic[:STRAY_TOPIC_LENGTH_MAX]}-{partition}.{owner}{STRAY_SUFFIX}"
        stray = directory.with_name(name)
        directory.rename(stray)
        logger.warning("log of another topic moved aside", extra={"path": str(stray)})

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)


def _names(directory: Path | str) -> list[str]:
    """Return the names in a directory; none if the directory does not exist."""
    try:
        # Many times faster than ``Path.glob``, and a start lists every partition's directory.
        return os.listdir(directory)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []


def _label(directory: Path, topic_id: UUID) -> Path:
    return directory / f"{TOPIC_ID_PREFIX}{topic_id}"


def _topic_id(name: str) -> UUID | None:
    """Return the topic's id if ``name`` is a label's, else ``None``."""
    if not name.startswith(TOPIC_ID_PREFIX):
        return None
    try:
        return UUID(name.removeprefix(TOPIC_ID_PREFIX))
    except ValueError:
        return None


def _node_line(cluster_id: str, broker_id: int) -> str:
    return f"cluster {cluster_id} broker {broker_id}\n"


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    for parent in (path.parent, path.parent.parent):
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
