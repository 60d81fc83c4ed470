"""A lasting refusal is told when it begins, now and then while it lasts, and when it ends."""

from __future__ import annotations

import logging

import pytest
from tidelog_core.objects.s3_refusals import REMIND_S, Refusals


def test_a_refusal_is_told_with_its_changes_and_not_with_every_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now_s = 0.0
    refusals = Refusals("bucket", clock_s=lambda: now_s)

    def told() -> list[tuple[str, str]]:
        found = [(r.levelname, vars(r)["operation"]) for r in caplog.records]
        caplog.clear()
        return found

    refusals.note_success("read")
    assert told() == []
    for _ in range(100):
        now_s += REMIND_S / 101
        refusals.note_refusal("read", "AccessDenied: no")
        refusals.note_success("list")
    assert told() == [("ERROR", "read")]
    refusals.note_refusal("write", "AccessDenied: no")
    assert told() == [("ERROR", "write")]
    now_s += REMIND_S / 2
    refusals.note_refusal("read", "AccessDenied: no")
    assert told() == [("ERROR", "read")]
    refusals.note_success("read")
    refusals.note_success("read")
    assert told() == [("INFO", "read")]


def test_a_policy_that_allows_some_keys_and_not_others_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals("bucket", clock_s=lambda: 0.0)
    for _ in range(100):
        refusals.note_refusal("read", "AccessDenied: no")
        refusals.note_success("read")
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
