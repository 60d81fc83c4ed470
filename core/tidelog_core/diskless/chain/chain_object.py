"""One object of a chain from its being built until it is committed, as its owner knows it."""

from __future__ import annotations

from tidelog_core.diskless.chain.noted_ranges import ObjectContent
from tidelog_core.diskless.wal.header import WalHeader


class ChainObject:
    """An object that is not committed. Times are steady milliseconds."""

    __slots__ = (
        "attempts",
        "committed_end",
        "content",
        "ends",
        "failures",
        "header",
        "hedge_ms",
        "is_reading",
        "last_attempt",
        "previous_crc",
        "retry_ms",
    )

    def __init__(self, content: ObjectContent, committed_end: int, previous_crc: int) -> None:
        self.content = content
        self.committed_end = committed_end
        self.previous_crc = previous_crc
        self.ends = content.ends()
        self.header: WalHeader | None = None  # None: being built
        self.attempts: dict[int, float] = {}  # unanswered PUTs, and when they were sent
        self.last_attempt = 0
        self.hedge_ms: float | None = None
        self.retry_ms: float | None = None  # of the build, or of the PUT once it is built
        self.failures = 0  # in a row
        self.is_reading = False
