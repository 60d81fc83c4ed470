"""``consume --grep``: a filter of records, by RE2, whose time is linear for any pattern."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidelog_cli.failures import CommandFailed, UsageError

if TYPE_CHECKING:
    from tidelog.consuming.records import ConsumerRecord

RecordFilter = Callable[["ConsumerRecord"], bool]
PATTERN_BYTES_MAX = 64 * 1024
MEMORY_BYTES_MAX = 8 * 1024 * 1024  # of the compiled pattern


def grep(pattern: str) -> RecordFilter:
    """Return whether a record's key, value or a header's value has a match of the pattern.

    Raises ``UsageError`` for a wrong pattern, ``CommandFailed`` without the library.
    """
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise UsageError(f"--grep must have at most {PATTERN_BYTES_MAX} bytes")
    if find_spec("re2") is None:
        raise CommandFailed("--grep needs a library: pip install 'tidelog[node]'")
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        compiled = re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise UsageError(f"--grep {pattern!r} is not a regular expression of RE2: {text}") from None

    def matches(record: ConsumerRecord) -> bool:
        parts = (record.value, record.key, *(value for _, value in record.headers))
        return any(part is not None and compiled.search(part) is not None for part in parts)

    return matches
