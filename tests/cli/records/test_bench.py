"""``tidelog bench``: it measures, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.support.command import called


@pytest.mark.parametrize("work", ["produce", "consume", "end-to-end"])
def test_run_counts_its_records_and_deletes_its_topic(work: str, bootstrap: str) -> None:
    before = called("topic", "list", bootstrap=bootstrap).out
    found = called(
        "bench", work, "--records", 100, "--size", 50, "--json", bootstrap=bootstrap
    ).document
    assert found["records"] == 100
    assert found["records_per_second"] > 0
    if work != "consume":
        assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert called("topic", "list", bootstrap=bootstrap).out == before


def test_rate_is_kept_and_a_topic_of_ones_own_stays(bootstrap: str) -> None:
    called("topic", "create", "benched", bootstrap=bootstrap)
    options = ("--topic", "benched", "--records", 20)
    text = called("bench", "produce", *options, "--rate", 100, bootstrap=bootstrap).lines
    assert text[0].split()[:3] == ["RECORDS", "SECONDS", "RECORDS/S"]
    assert int(text[1].split()[2]) <= 106  # 20 records in at least 0.19 s
    found = called("bench", "consume", *options, "--json", bootstrap=bootstrap).document
    assert found["records"] == 20
    outcome = called("bench", "consume", "--topic", "benchd", bootstrap=bootstrap, status=1)
    assert "there is no topic 'benchd'; did you mean 'benched'?" in outcome.errors
