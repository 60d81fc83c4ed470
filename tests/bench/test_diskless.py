"""The node's waits beside the model's."""

from __future__ import annotations

from bench.diskless import Waits, differences


def test_a_node_that_is_slower_or_faster_than_the_model_is_found() -> None:
    model = Waits(100.0, 200.0, 300.0)
    assert differences(50, Waits(124.0, 160.0, 900.0), model) == []
    assert differences(50, Waits(126.0, 149.0, 300.0), model) == [
        "50 ms: p50 is 126.0 ms, 100.0 by the model",
        "50 ms: p99 is 149.0 ms, 200.0 by the model",
    ]


def test_percentiles_are_of_the_ordered_waits() -> None:
    assert Waits.of([float(n) for n in range(999, -1, -1)]) == Waits(500.0, 990.0, 999.0)
