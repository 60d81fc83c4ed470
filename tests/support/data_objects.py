"""Data objects of chains built in memory; nodes write them from files (``tier/wal_writing.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ForeignSlice,
    ObjectName,
    WalSlice,
    data_sections,
    frame_object,
)
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalKind
from tidelog_core.diskless.wal.rows import EpochRow, MarkRow, WalSection, pack_rows
from tidelog_core.diskless.wal.scan import SliceScan, scan_slice
from tidelog_core.records.header import Buffer


def build_data_object(
    name: ObjectName,
    slices: Iterable[WalSlice],
    *,
    references: Iterable[ForeignSlice] = (),
    epochs: Iterable[EpochRow] = (),
    marks: Iterable[MarkRow] = (),
) -> BuiltObject:
    """Return the object with these slices in their order. No node writes marks.

    Every batch must be whole: raises ``CorruptRecordBatch``. CRCs of batches are not checked
    again, they were when the batches were appended.
    """
    body: list[Buffer] = []
    scans: list[tuple[WalSlice, SliceScan]] = []
    position = HEADER_SIZE
    for one in slices:
        scans.append((one, scan_slice(one.data, position, is_foreign=one.is_foreign)))
        body.append(one.data)
        position += len(one.data)
    sections = data_sections(scans, references=references, epochs=epochs)
    sections[WalSection.MARKS] = pack_rows(WalSection.MARKS, marks)
    frame = frame_object(name, WalKind.DATA, position - HEADER_SIZE, sections)
    return BuiltObject(frame.header, b"".join([frame.head, *body, frame.tail]))
