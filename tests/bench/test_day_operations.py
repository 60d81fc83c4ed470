"""The figures that the simulated day is made of are what the code really does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.metadata.stores.dynamodb_units import (
    attributes_size_bytes,
    read_units,
    transaction_write_units,
    write_units,
)

from bench.day import measure
from bench.day.operations import COSTS, ITEM_BYTES, Cost


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cost]:
    return measure.measure(tmp_path_factory.mktemp("day"))


def test_every_operation_is_measured_and_no_other_is_stated(measured: dict[str, Cost]) -> None:
    assert measured.keys() == COSTS.keys()


@pytest.mark.parametrize("operation", COSTS)
def test_an_operation_takes_what_is_stated(operation: str, measured: dict[str, Cost]) -> None:
    assert measured[operation] == COSTS[operation]


def test_items_have_the_sizes_that_are_stated() -> None:
    assert measure.item_bytes() == ITEM_BYTES


def test_another_run_measures_the_same(measured: dict[str, Cost], tmp_path: Path) -> None:
    assert measure.measure(tmp_path) == measured


def test_units_are_rounded_up_for_each_item_before_a_transaction_doubles_them() -> None:
    """The examples of DynamoDB's developer guide: 3 KB take 3 units, 1.5 KB in a transaction 4."""
    assert [write_units(size) for size in (0, 1, 1024, 1025, 3072)] == [1, 1, 1, 2, 3]
    assert transaction_write_units(1536) == 4
    assert [read_units(size) for size in (0, 4096, 4097, 64 * 1024)] == [1, 1, 2, 16]


def test_an_items_size_counts_names_text_and_digits() -> None:
    attributes = {"pk": {"S": "abc"}, "v": {"N": "12345"}, "é": {"S": "é"}}
    assert attributes_size_bytes(attributes) == (2 + 3) + (1 + 3 + 1) + (2 + 2)
