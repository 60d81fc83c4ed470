"""The messages between the node and a rewriter process, besides ``CleanedGroup``."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.compaction.cleaner import CleaningTask
from tidelog_core.erasure.log_files import ErasingTask


@dataclass(frozen=True, slots=True)
class RewriterJob:
    """The work of one process."""

    task: CleaningTask | ErasingTask
    bytes_per_second: int  # read and written together


@dataclass(frozen=True, slots=True)
class RewriteEnd:
    """The last message: all groups are finished."""

    end_offset: int  # exclusive end of the compacted or erased part
