"""What ``tidelog job`` starts Spark with."""

from __future__ import annotations

from tidelog_cli.storage.jobs import QUIET_LOG


def test_the_settings_of_sparks_log_are_where_it_is_told_to_look() -> None:
    assert "rootLogger.level" in QUIET_LOG.read_text()
