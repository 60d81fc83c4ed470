"""The messages between the node and a rewriter process, besides ``CleanedGroup``."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.compaction.cleaner import CleaningTask
from tidelog_core.erasure.log_files import ErasingTask


@dataclass(frozen=True, slots=True)
class RewriterJob:
    """What one process is to do."""

    task: CleaningTask | ErasingTask
    bytes_per_second: int  # read and written together


@dataclass(frozen=True, slots=True)
class RewriteEnd:
    """All groups are through."""

    end_offset: int  # exclusive: where the compacted part, or the erasure, ends
