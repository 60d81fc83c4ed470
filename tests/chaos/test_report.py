"""A run in words."""

from __future__ import annotations

from tests.chaos.history import History, Outcome, Write
from tests.chaos.report import summarize


def wrote(topic: str, at_s: float) -> Write:
    return Write("p", topic, 0, 0, topic, True, True, False, -1, at_s, at_s + 1, Outcome.OK)


def test_a_partition_that_was_made_after_the_faults_is_not_said_to_have_stayed_away() -> None:
    history = History()
    for topic in ("back", "away", "late"):
        history.add(wrote(topic, 5.0))
    told = summarize(history, [], title="", recovered={"back-0": 0.5, "away-0": None})
    endings = {
        line.split()[0]: line.partition("; ")[2]
        for line in told.splitlines()
        if line.startswith(("  back", "  away", "  late"))
    }
    assert endings == {
        "back-0": "took writes again after 0.50 s when the faults had ended",
        "away-0": "took writes again never when the faults had ended",
        "late-0": "was not tried when the faults had ended",
    }
