"""Errors in Spark's tracebacks say what to do, once."""

from __future__ import annotations

import traceback

import pytest
from tidelog.errors import ConnectionFailed
from tidelog_spark.error_hints import with_hint


@with_hint()
def fail() -> None:
    raise ConnectionFailed("no node answers")


def test_a_hint_is_in_the_traceback_once_however_many_calls_it_passes() -> None:
    with pytest.raises(ConnectionFailed) as raised, with_hint():
        fail()
    text = "".join(traceback.format_exception(raised.value))
    assert text.count(f"hint: {ConnectionFailed.hint}") == 1
