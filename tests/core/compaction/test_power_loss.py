"""The power fails while compacted segments are put in place: old or new, none is lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.core.log.power_cuts import Disk, watched
from tests.support.local_logs import SETTINGS, clean, committed_records_of, sealed_log
from tests.support.log_building import open_log
from tests.support.random_logs import committed_records, keyed, oracle


class TreeDisk(Disk):
    """As ``Disk``, with files that were fsynced before they were moved into the directory.

    Of the changes of names since the directory's last fsync, any may be durable.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # The name that goes, the one that comes, and its inode.
        self.changes: list[tuple[str | None, str | None, int]] = []

    def note_rename(self, source: Path, target: Path) -> None:
        if target.parent == self.directory:
            old = source.name if source.parent == self.directory else None
            self.changes.append((old, target.name, source.stat().st_ino))

    def note_unlink(self, path: Path) -> None:
        if path.parent == self.directory:
            self.changes.append((path.name, None, 0))

    def with_some_changes(self, rng: random.Random) -> TreeDisk:
        """Return a disk on which a random part of the changes is durable."""
        other = TreeDisk(self.directory)
        other.contents, other.names = self.contents, dict(self.names)
        for old, new, inode in self.changes:
            if rng.random() < 0.5:
                if old is not None:
                    other.names.pop(old, None)
                if new is not None:
                    other.names[new] = inode
        return other

    def note_fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path == self.directory:
            self.changes.clear()
            self.names = {
                entry.name: entry.inode() for entry in os.scandir(path) if entry.is_file()
            }
        elif self.directory in path.parents:
            self.contents[os.fstat(descriptor).st_ino] = path.read_bytes()
            self.kept.append(os.dup(descriptor))


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_fsync_leaves_the_old_or_the_new_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    random_log = keyed(*[b"a", b"b"] * 8, *[b"a"] * 12, *[b"c", b"d", b"e", b"f"] * 3)
    directory = tmp_path / "log"
    log = sealed_log(directory, random_log.batches)
    survivors = oracle(committed_records(random_log.batches), log.log_end_offset)
    disk = TreeDisk(directory)
    cuts = 0

    def cut_power() -> None:
        nonlocal cuts
        found_directory = tmp_path / f"cut{cuts}"
        cuts += 1
        disk.with_some_changes(rng).after_power_cut(found_directory)
        found = open_log(found_directory, **SETTINGS)
        found.advance_high_watermark(found.log_end_offset)
        assert found.log_end_offset == random_log.end_offset
        records = committed_records_of(found)
        assert [one for one in records if one in survivors] == survivors
        found.roll()
        found.flush()
        clean(found)
        assert committed_records_of(found) == survivors
        found.close()

    for path in [*directory.iterdir(), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        disk.note_fsync(descriptor)
        os.close(descriptor)
    rename, unlink = os.rename, os.unlink

    def watched_rename(source: Path, target: Path) -> None:
        disk.note_rename(Path(source), Path(target))
        rename(source, target)

    def watched_unlink(path: Path, **options: int) -> None:
        disk.note_unlink(Path(path))
        unlink(path, **options)

    monkeypatch.setattr(os, "rename", watched_rename)
    monkeypatch.setattr(os, "unlink", watched_unlink)
    with watched(monkeypatch, disk, cut_power):
        clean(log)
        log.flush()
        cut_power()
    assert committed_records_of(log) == survivors
    print(f"{cuts} power cuts")
    assert cuts > 10
    log.close()
