"""Slopes are found and judged as they are argued, and the bench yields its table."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scaling.__main__ import steps_of
from bench.scaling.brokers import Tidelog
from bench.scaling.cluster import HOT, Cluster
from bench.scaling.dimension import JUDGED, Dimension, Growth, Measure
from bench.scaling.dimensions import DIMENSIONS
from bench.scaling.fit import Noise, fit, is_too_steep
from bench.scaling.measuring import Effort, Figures, grow_through
from bench.scaling.results import Results
from bench.scaling.table import comparison, page, rows
from tools.places import ROOT

STEPS = (1, 10, 100, 1_000, 10_000)
NOISE = Noise(2.0, 0.1)
TINY = Effort(idle_seconds=0.1, operations=10, rounds=2, warm_up=1, quiet_step_seconds=0.1)
SEEN = (Measure.IDLE_CPU, Measure.WORK_CPU, Measure.WORK_P99, Measure.MEMORY)

bases = st.floats(0, 1_000)
slopes = st.floats(0, 10)
step_counts = st.integers(2, len(STEPS))


@given(base=bases, slope=slopes, count=step_counts)
def test_a_line_is_found_as_it_is(base: float, slope: float, count: int) -> None:
    found = fit([(n, base + slope * n) for n in STEPS[:count]], NOISE)
    assert math.isclose(found.slope, slope, rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(found.last_slope, slope, rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(found.base, base, rel_tol=1e-6, abs_tol=1e-3)


@given(base=bases, offs=st.lists(st.floats(-1, 1), min_size=2, max_size=len(STEPS)))
def test_what_only_noise_moves_is_never_too_steep(base: float, offs: list[float]) -> None:
    reach = NOISE.of(base) / 4
    points = [(n, base + off * reach) for n, off in zip(STEPS, offs, strict=False)]
    assert not is_too_steep(points, NOISE, slope_max=0.0)


@given(base=bases, slope=slopes, count=step_counts)
def test_a_line_within_its_bound_holds(base: float, slope: float, count: int) -> None:
    points = [(n, base + slope * n) for n in STEPS[:count]]
    assert not is_too_steep(points, NOISE, slope_max=slope)


@given(base=bases, slope=st.floats(0.1, 10), share=st.floats(0, 0.8))
def test_a_line_well_above_its_bound_is_too_steep(base: float, slope: float, share: float) -> None:
    points = [(n, base + slope * n) for n in STEPS]
    assert is_too_steep(points, NOISE, slope_max=slope * share)


@given(base=bases, scale=st.floats(1e-4, 1.0))
def test_a_square_fails_by_what_one_more_costs_at_the_end(base: float, scale: float) -> None:
    """Its line through all steps stays below the bound: only its last slope does not."""
    points = [(n, base + scale * n * n) for n in STEPS[:4]]
    bound = scale * 900
    assert is_too_steep(points, Noise(0.0, 0.01), slope_max=bound)
    found = fit(points, Noise(0.001, 0.0))
    assert found.exponent is not None
    assert 1.9 < found.exponent < 2.1


@given(scale=st.floats(0.01, 100), costs=st.lists(st.floats(0, 1_000), min_size=2, max_size=5))
def test_the_unit_of_a_cost_changes_its_slope_alone(scale: float, costs: list[float]) -> None:
    points = list(zip(STEPS, costs, strict=False))
    found = fit(points, NOISE)
    scaled = fit([(n, cost * scale) for n, cost in points], Noise(2.0 * scale, 0.1))
    assert math.isclose(scaled.slope, found.slope * scale, rel_tol=1e-6, abs_tol=1e-6 * scale)


def test_one_step_has_no_slope() -> None:
    assert fit([(1, 5.0)], NOISE).slope == 0.0
    assert not is_too_steep([(1, 5.0)], NOISE, slope_max=0.0)


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda one: one.name)
def test_every_growth_that_is_allowed_says_why(dimension: Dimension) -> None:
    assert len(dimension.steps) > 1
    assert list(dimension.steps) == sorted(dimension.steps)
    for measure, growth in dimension.may_grow.items():
        assert measure in JUDGED
        assert growth.per_unit > 0
        assert len(growth.why) > 10


def test_the_table_names_bound_and_verdict_of_each_measure() -> None:
    dimension = Dimension(
        "things",
        "a thing",
        (1, 1_000),
        make=lambda: pytest.fail("nothing is grown here"),
        may_grow={Measure.MEMORY: Growth(0.01, "10 KB, for what it is")},
    )
    seen = {
        1: {Measure.IDLE_CPU: 4.0, Measure.WORK_P99: 2.0, Measure.MEMORY: 40.0},
        1_000: {Measure.IDLE_CPU: 90.0, Measure.WORK_P99: 3.0, Measure.MEMORY: 48.0},
    }
    judged = {row.measure: row.verdict for row in rows(dimension, seen)}
    assert judged == {
        Measure.IDLE_CPU: "TOO STEEP",
        Measure.WORK_P99: "",
        Measure.MEMORY: "held",
    }
    text = page(dimension, seen)
    assert "10 KB, for what it is" in text
    assert "| idle CPU, ms a second | 4 | 90 | 86.1 |" in text


def test_a_comparison_has_what_both_runs_have() -> None:
    [dimension] = [one for one in DIMENSIONS if one.name == "partitions"]
    before = {n: {Measure.IDLE_CPU: 5.0 + n / 100} for n in (1, 100, 1_000)}
    after = {n: {Measure.IDLE_CPU: 4.0, Measure.MEMORY: 50.0} for n in (1, 1_000)}
    text = comparison(dimension, before, after)
    assert "| idle CPU, ms a second | 5.01 → 4 | 15 → 4 | 10 → 0 | 1 |" in text
    assert "memory" not in text


def test_figures_of_one_dimension_leave_those_of_others(tmp_path: Path) -> None:
    results = Results(tmp_path / "new")
    assert results.read("before") == {}
    seen = {1: {Measure.MEMORY: 40.0}, 1_000: {Measure.MEMORY: 48.0, Measure.IDLE_CPU: 5.5}}
    results.add("before", "topics", seen)
    results.add("before", "nodes", {1: {Measure.MEMORY: 1.0}})
    results.add("before", "nodes", {10: {Measure.MEMORY: 2.0}})
    assert results.read("before") == {"topics": seen, "nodes": {10: {Measure.MEMORY: 2.0}}}


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda one: one.name)
def test_a_quick_run_has_two_steps_at_least(dimension: Dimension) -> None:
    assert steps_of(dimension, None, is_quick=False) == tuple(dimension.steps)
    quick = steps_of(dimension, None, is_quick=True)
    assert len(quick) > 1
    assert quick == tuple(dimension.steps[: len(quick)])
    assert steps_of(dimension, [1, 7], is_quick=True) == (1, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["connections", pytest.param("client ids", marks=pytest.mark.slow)]
)
def test_a_small_dimension_yields_a_table(tmp_path: Path, name: str) -> None:
    """The real thing on one node: grown, measured, and a row for all that is to be known."""
    cluster = Cluster(Tidelog(ROOT, is_compiled=False), tmp_path, 1)
    cluster.start()
    try:
        cluster.create_topics({HOT: 1})
        (dimension,) = [one for one in DIMENSIONS if one.name == name]
        seen: dict[int, Figures] = {}
        grow_through(cluster, dimension, (1, 5), TINY, tell=seen.__setitem__)
        text = page(dimension, seen)
        assert "| 1 | 5 | slope per 1,000 |" in text
        # Of slopes nothing can be said between one and five, and of so short a while a processor's
        # clock may have seen nothing.
        assert Measure.MEMORY.value in text
        assert all(set(SEEN) <= figures.keys() for figures in seen.values())
    finally:
        cluster.stop()
