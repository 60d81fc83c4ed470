"""Formats the process's own log, one line an event.

    text   2026-01-01 00:00:00,000 WARNING node-1 logger: message key='value'
    json   {"timestamp": "2026-01-01T00:00:00.000Z", "level": "WARNING", ...}

Both have the fields that a call gave as ``extra``. Values may come from clients: with any value, a
JSON line stays one line that parses. A field with the name of another key gets ``_`` appended.
"""

from __future__ import annotations

import datetime
import json
import logging
import math
import sys
import threading
from collections.abc import Collection, Mapping
from itertools import islice
from types import TracebackType

TEXT, JSON = "text", "json"
LOG_FORMATS = (TEXT, JSON)
TEXT_CHARS_MAX = 16_384  # of one value
NESTED_MAX = 4  # levels of collections in a value
ELEMENTS_MAX = 1_000  # of one collection
INT_BITS_MAX = 64

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """Appends the fields that a call gave as ``extra``."""

    def __init__(self, name: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        line = super().formatMessage(record)
        fields = [
            f"{key}={value!r}" for key, value in record.__dict__.items() if key not in _STANDARD
        ]
        return " ".join((line, *fields))


class JsonFormatter(logging.Formatter):
    """Writes an event as one JSON object without line breaks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._process = name

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        made_at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "timestamp": made_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": _plain(_message(record)),
        }
        for key, value in record.__dict__.items():
            if key not in _STANDARD:
                line[f"{key}_" if key in line or key == "exception" else key] = _plain(value)
        exception = self._exception(record)
        if exception:
            line["exception"] = _plain(exception)
        return json.dumps(line, separators=(",", ":"))

    def _exception(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


def configure_logging(name: str, level: str, *, log_format: str = TEXT) -> None:
    """Send the process's log to stderr under this name.

    As JSON, warnings and uncaught exceptions are events, too: every line that the program writes to
    stderr is JSON.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(name) if log_format == JSON else FieldFormatter(name))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if log_format == JSON:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda failed: _log_uncaught(
            failed.exc_type, failed.exc_value, failed.exc_traceback
        )
        sys.unraisablehook = lambda failed: _log_uncaught(
            failed.exc_type, failed.exc_value, failed.exc_traceback
        )


def _log_uncaught(
    kind: type[BaseException], problem: BaseException | None, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    problem = problem or kind()
    logging.getLogger(__name__).critical("uncaught exception", exc_info=(kind, problem, trace))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # Its arguments do not fit: a bug, which must not cost the event.
        return str(record.msg)


def _plain(value: object, depth: int = 0) -> object:
    """Return the value as JSON can have it; a text where it cannot."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= INT_BITS_MAX else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth < NESTED_MAX and isinstance(value, Mapping | list | tuple | set | frozenset):
        return _collection(value, depth + 1)
    try:
        return _text(str(value))
    except Exception:  # A broken __str__ must not cost the event.
        return f"<{type(value).__name__}>"


def _collection(
    value: Mapping[object, object] | Collection[object], depth: int
) -> dict[str, object] | list[object]:
    if isinstance(value, Mapping):
        some = islice(value.items(), ELEMENTS_MAX)
        return {str(_plain(key, depth)): _plain(one, depth) for key, one in some}
    return [_plain(one, depth) for one in islice(value, ELEMENTS_MAX)]


def _text(value: str) -> str:
    """Return the text without lone surrogates, which JSON parsers refuse, and not too long."""
    if len(value) > TEXT_CHARS_MAX:
        value = f"{value[:TEXT_CHARS_MAX]}... and {len(value) - TEXT_CHARS_MAX} more characters"
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
