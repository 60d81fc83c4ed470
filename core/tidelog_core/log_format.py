"""Formats the process's own log: one line an event, the fields of ``extra`` as key=value."""

from __future__ import annotations

import logging
import sys

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


def configure_logging(name: str, level: str) -> None:
    """Send the process's log to stderr under this name."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter(name))
    logging.basicConfig(level=level, handlers=[handler], force=True)
