"""What a power cut leaves of a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Names = dict[str, int]  # file name → inode


class Disk:
    """What of one directory is durable."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.contents: dict[int, bytes] = {}  # inode → bytes at its last fsync
        self.names: Names = {}
        self.synced: list[str] = []  # names in the order of their fsync
        self.kept: list[int] = []  # open files, so that no inode number is used twice

    def note_fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.synced.append(path.name)
        if path == self.directory:
            self.names = {entry.name: entry.inode() for entry in os.scandir(path)}
        elif path.parent == self.directory:
            content = path.read_bytes() if path.exists() else b""
            self.contents[os.fstat(descriptor).st_ino] = content
            self.kept.append(os.dup(descriptor))

    def after_power_cut(self, target: Path) -> Path:
        """Build the directory as it would be found."""
        target.mkdir(parents=True)
        for name, inode in self.names.items():
            (target / name).write_bytes(self.contents.get(inode, b""))
        return target

    def close(self) -> None:
        for descriptor in self.kept:
            os.close(descriptor)


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, disk: Disk, before: Callable[[], None]
) -> Iterator[None]:
    """Call ``before`` ahead of every fsync, and let the disk take note of it."""
    fsync = os.fsync
    is_inside = False

    def watch(descriptor: int) -> None:
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            before()
            is_inside = False
            disk.note_fsync(descriptor)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watch)
        yield
    disk.close()
