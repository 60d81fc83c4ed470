"""The names of the files in a partition's directory.

A segment's files are named after its base offset, 20 digits, as in Kafka:

    00000000000000000042.log        record batches, back to back
    00000000000000000042.index      offset index (written when the segment is sealed)
    00000000000000000042.timeindex  time index (likewise)
    00000000000000000042.txnindex   aborted transactions (likewise, only if there are any)
    00000000000000000042.snapshot   producers' state at offset 42: what the segment starts from

and the small checkpoint files named below. While compaction replaces segments, there are also:

cleaned/                                                new segments, until they are complete
00000000000000000042.log.00000000000000000099.swap      the segment that replaces all
                                                        segments in [42, 99) (``cleaned_segments``)

While records before the first segment are still to be filled in, the log that gets them is in:

filling/                                                see ``unfilled_range``
"""

from __future__ import annotations

from pathlib import Path

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
TEMPORARY_SUFFIX = ".tmp"
DELETED_DIRECTORY_SUFFIX = "-delete"
SWAP_SUFFIX = ".swap"
CLEANED_DIRECTORY = "cleaned"
FILLING_DIRECTORY = "filling"

RECOVERY_POINT_FILE = "recovery-point"
START_OFFSET_FILE = "log-start-offset"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
SEGMENT_FILE = "sealed-segments"
CLEAN_SHUTDOWN_FILE = "clean-shutdown"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
UNFILLED_FILE = "unfilled"

_OFFSET_DIGITS = 20


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Return the path of one of a segment's files."""
    return directory / f"{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_segment_name(name: str) -> tuple[int, str] | None:
    """Return the offset and the suffix in a segment file's name, None for any other name."""
    digits, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if len(digits) < _OFFSET_DIGITS or not digits.isdecimal() or not suffix.startswith("."):
        return None
    return int(digits), suffix


def swap_path(directory: Path, base_offset: int, end_offset: int) -> Path:
    """Return the path of a segment file that replaces all in ``[base_offset, end_offset)``."""
    name = f"{base_offset:0{_OFFSET_DIGITS}d}{LOG_SUFFIX}.{end_offset:0{_OFFSET_DIGITS}d}"
    return directory / (name + SWAP_SUFFIX)


def parse_swap_name(name: str) -> tuple[int, int] | None:
    """Return the offsets in the name of ``swap_path``, None for any other name."""
    parsed = parse_segment_name(name) if name.endswith(SWAP_SUFFIX) else None
    if parsed is None or not parsed[1].startswith(LOG_SUFFIX):
        return None
    digits = parsed[1][len(LOG_SUFFIX) + 1 : -len(SWAP_SUFFIX)]
    return (parsed[0], int(digits)) if digits.isdecimal() else None
