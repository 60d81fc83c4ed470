"""Damaged files are kept, each of them."""

from __future__ import annotations

from pathlib import Path

from tidelog_core.log.recovery.quarantine import keep_file


def test_a_damaged_file_gets_a_name_that_is_free(tmp_path: Path) -> None:
    path, directory = tmp_path / "0.log", tmp_path / "kept"
    for number in range(3):
        path.write_bytes(b"%d" % number)
        keep_file(path, directory)
        path.unlink()
    (directory / "0.log.1").unlink()  # A person has seen enough of it.
    path.write_bytes(b"3")
    keep_file(path, directory)
    assert sorted(kept.read_bytes() for kept in directory.iterdir()) == [b"0", b"2", b"3"]


def test_a_file_that_is_gone_is_not_kept(tmp_path: Path) -> None:
    keep_file(tmp_path / "0.log", tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())
