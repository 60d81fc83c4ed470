"""The kernels' machine code in files: what a process needs to use it, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tidelog.arrow.native import stored_code
from tidelog.arrow.native.code_file import Entry, pack_entries, unpack_entries
from tidelog.arrow.native.stored_code import find_entries, link_entries, machine_code, store_entries

from tests.support.batches import batch_of

ENTRIES = (Entry("a", "symbol_a", "pi", b"\x7fELF one"), Entry("b", "symbol_b", "", b""))
DECODES = """
import sys
from tidelog.arrow.decoding import BatchDecoder, RowRange
rows = RowRange("t", 0, 0, 1 << 60, include_headers=True)
decoder = BatchDecoder(rows, object_key="o")
[batch] = decoder.feed(sys.stdin.buffer.read())
print(batch.num_rows, *sorted({"numba", "pandas"} & sys.modules.keys()))
"""


def test_a_process_with_stored_code_decodes_without_numba_and_pandas() -> None:
    """Each of them takes a third of a second of CPU or more, in every Python worker of Spark."""
    machine_code()  # It is stored now.
    found = subprocess.run(
        [sys.executable, "-c", DECODES],
        input=batch_of(b"value"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert found.stdout.split() == [b"1"]


def test_code_of_a_file_gives_what_built_code_gives(tmp_path: Path) -> None:
    machine_code()
    entries = find_entries(stored_code.code_files())
    assert entries is not None
    stored = store_entries(entries, [tmp_path / "code.bin"])
    assert stored is not None
    read = find_entries([stored])
    assert read == entries
    data, table = np.frombuffer(batch_of(b"value"), np.uint8), np.zeros((3, 10), np.int64)
    found = np.zeros(3, np.int64)
    link_entries(read).scan_batches(
        data.ctypes.data, len(data), table.ctypes.data, len(table), found.ctypes.data
    )
    assert found.tolist() == [1, len(data), 0]
    assert table[0, 1] == len(data)


def test_a_file_names_its_platform_processor_and_sources() -> None:
    names = [path.name for path in stored_code.code_files()]
    assert names[0] == stored_code.file_name(stored_code._digest() or "", "generic")
    assert len(set(names)) == 2
    assert stored_code.file_name("a" * 64, "generic") != stored_code.file_name("b" * 64, "generic")


@pytest.mark.parametrize("size", [0, 7, 8, 39, 40, 43, 44, 60])
def test_a_file_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="not a whole file"):
        unpack_entries(pack_entries(ENTRIES)[:size])


def test_a_file_with_any_other_byte_is_refused() -> None:
    data = pack_entries(ENTRIES)
    assert unpack_entries(data) == ENTRIES
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1
        with pytest.raises(ValueError, match="not a whole file"):
            unpack_entries(bytes(damaged))


def test_a_damaged_file_is_named_and_the_next_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "damaged").write_bytes(pack_entries(ENTRIES)[:-1])
    (tmp_path / "whole").write_bytes(pack_entries(ENTRIES))
    places = [tmp_path / "absent", tmp_path / "damaged", tmp_path / "whole"]
    assert find_entries(places) == ENTRIES
    [record] = caplog.records
    assert record.__dict__["path"] == str(tmp_path / "damaged")
    assert find_entries(places[:1]) is None


def test_code_of_a_stranger_is_named_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The home may be a folder that others may write to, such as /tmp."""
    path = tmp_path / "code.bin"
    path.write_bytes(pack_entries(ENTRIES))
    owner = path.stat().st_uid
    assert find_entries([path], owners={owner + 1}) is None
    [record] = caplog.records
    assert f"belongs to the user {owner}" in record.__dict__["reason"]
    assert find_entries([path]) == ENTRIES


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "code.bin"
    path.mkdir()
    assert store_entries(ENTRIES, [path]) is None
    assert list(tmp_path.iterdir()) == [path]


def test_code_is_stored_in_the_first_place_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    places = [tmp_path / "file" / "code.bin", tmp_path / "new" / "code.bin"]
    assert store_entries(ENTRIES, places) == places[1]
    assert [path.name for path in places[1].parent.iterdir()] == ["code.bin"]
    assert places[1].stat().st_mode & 0o777 == 0o644
    assert store_entries(ENTRIES, places[:1]) is None
