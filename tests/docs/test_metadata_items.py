"""``docs/internals/metadata-items.md`` has every kind of item that there is."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import pytest
import tidelog_core.metadata
from tidelog_core.metadata.items import ITEMS
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.store import ItemKey

from tools.metadata_items import PAGE, items_page

RECORDS = [kind.value for kind in ITEMS if not isinstance(kind.value, ItemKey)]


def test_the_page_is_up_to_date() -> None:
    """If not: ``make docs``."""
    assert PAGE.read_text() == items_page()


def test_every_declared_record_is_listed() -> None:
    package = tidelog_core.metadata
    found = {
        value
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, type) and issubclass(value, Record) and value is not Record
    }
    assert found == set(RECORDS)


def test_no_two_kinds_of_items_share_a_collection() -> None:
    collections = Counter(
        (kind.value if isinstance(kind.value, ItemKey) else kind.value.KEY.text).collection
        for kind in ITEMS
    )
    assert collections.most_common(1)[0][1] == 1


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_what_the_key_takes_is_a_field_of_the_record(record: type[Record]) -> None:
    assert set(record.KEY.parameters) <= set(record.__dataclass_fields__)
