"""``tidelog job activity`` refuses what no event can match: it would say that nothing was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import called


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (("--kind", "consumed"), "--kind must be one of authenticate, management, denied"),
        (("--user", "eve"), "--user must be a principal such as User:eve"),
        (("--from", "2026-04-01", "--until", "2026-03-01"), "must be after --from 2026-04-01"),
        (("--from", "march"), "--from must be a time such as 2026-03-01"),
    ],
    ids=["kind", "user", "times", "time"],
)
def test_what_no_event_can_match_is_refused_before_spark_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: Sequence[str], reason: str
) -> None:
    (tmp_path / "data").mkdir()
    called("job", "activity", "--data-dir", str(tmp_path / "data"), *wrong, status=2)
    errors = capfd.readouterr().err  # of the job's own process
    assert errors.count("\n") == 1
    assert reason in errors
