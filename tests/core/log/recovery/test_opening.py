"""What opening a log asks the disk for: a start opens thousands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import TopicConfig
from tidelog_core.log.checkpoint import read_file
from tidelog_core.log.local_log import LocalLog
from tidelog_core.model import TopicPartition

from tests.support.batches import batch_of

NAME = TopicPartition("t", 0)


def open_log(folder: Path) -> LocalLog:
    return LocalLog.open(folder, NAME, config=TopicConfig())


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_is_opened_with_one_look_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_clean: bool
) -> None:
    log = open_log(tmp_path / "log")
    for number in range(3):
        log.append_as_leader(bytearray(batch_of(b"%d" % number)), leader_epoch=0)
        log.roll()
    log.flush()
    if is_clean:
        log.close()
    looks: list[Any] = []
    list_names = os.listdir

    def counted(path: Any) -> list[str]:
        looks.append(path)
        return list_names(path)

    monkeypatch.setattr(os, "listdir", counted)
    again = open_log(tmp_path / "log")
    assert len(looks) == 1
    assert again.log_end_offset == 3
    again.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_a_small_file_is_read_to_its_end(tmp_path: Path, size_bytes: int) -> None:
    content = bytes(number % 251 for number in range(size_bytes))
    (tmp_path / "file").write_bytes(content)
    assert read_file(tmp_path / "file") == content
    assert read_file(str(tmp_path / "file")) == content


def test_a_file_that_cannot_be_read_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
