"""The node's data directory: one process at a time, one directory a partition.

    <data dir>/lock                            held while a node runs
    <data dir>/node                            whose directory it is: cluster id, broker id
    <data dir>/clean-shutdown                  there while every log was closed cleanly
    <data dir>/<topic>-<partition>/            a log
    <data dir>/<topic>-<partition>/topic-id    the id of the topic that the log belongs to
    <data dir>/<topic>-<partition>.<id>-stray  a log of a topic that had the same name before

A log whose topic id is not the one expected is moved aside, never removed: it may be
the only copy of something, so a person decides. The topic id is written before the
log's first file, so a directory without one holds nothing yet.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Protocol
from uuid import UUID

from tidelog_core.errors import StorageError
from tidelog_core.log.unified_log import remove_deleted_logs
from tidelog_core.model import TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE = "lock"
NODE_FILE = "node"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"
TOPIC_ID_FILE = "topic-id"


class HeldPartition(Protocol):
    """What names a partition for good."""

    @property
    def partition(self) -> TopicPartition:
        """Its name and number."""

    @property
    def topic_id(self) -> UUID:
        """The topic's id."""


class LogDirectories:
    """The data directory of one running node."""

    def __init__(self, path: Path) -> None:
        """Take the directory, making it where it is not there.

        Raises ``StorageError`` where another process has it.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StorageError(f"another node uses the data directory {path}") from None
        remove_deleted_logs(path)
        mark = path / CLEAN_SHUTDOWN_FILE
        self.was_clean = mark.exists() or not any(path.glob(f"*/{TOPIC_ID_FILE}"))
        mark.unlink(missing_ok=True)

    def belongs_to(self, cluster_id: str, broker_id: int) -> bool:
        """Return whether this node has used the directory before; False if nobody has.

        Raises ``StorageError`` where it is another node's or another cluster's.
        """
        path = self.path / NODE_FILE
        try:
            found = path.read_text()
        except FileNotFoundError:
            return False
        if found != _node_line(cluster_id, broker_id):
            raise StorageError(
                f"{path} says {found.strip()!r}: the directory is not of broker {broker_id} "
                f"of cluster {cluster_id}"
            )
        return True

    def take_possession(self, cluster_id: str, broker_id: int) -> None:
        """Note whose directory this is. Durable on return."""
        _write_durably(self.path / NODE_FILE, _node_line(cluster_id, broker_id))

    def claim(self, partition: TopicPartition, topic_id: UUID) -> Path:
        """Return the partition's directory, made and labelled if it was not there."""
        directory = self.path / str(partition)
        found = _read_topic_id(directory)
        if found is not None and found != topic_id:
            stray = self.path / f"{partition}.{found}-stray"
            directory.rename(stray)
            logger.warning("log of another topic moved aside", extra={"to": str(stray)})
            found = None
        if found is None:
            directory.mkdir(exist_ok=True)
            _write_durably(directory / TOPIC_ID_FILE, f"{topic_id}\n")
        return directory

    def holds(self, held: HeldPartition) -> bool:
        """Return whether there is a directory of this partition of this very topic."""
        return _read_topic_id(self.path / str(held.partition)) == held.topic_id

    def mark_clean(self) -> None:
        """Note that every log was closed cleanly. Nothing is appended after."""
        (self.path / CLEAN_SHUTDOWN_FILE).touch()

    def close(self) -> None:
        """Give the directory up."""
        os.close(self._lock)


def _read_topic_id(directory: Path) -> UUID | None:
    try:
        return UUID((directory / TOPIC_ID_FILE).read_text().strip())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StorageError(f"{directory / TOPIC_ID_FILE} is damaged: {error}") from None


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
