"""The price file, and what counts cost by it."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.cost.counts import ITEMS, SECONDS_PER_MONTH, machine
from tidelog_core.cost.prices import LIST_PRICES_FILE, list_prices, load_prices, parse_prices
from tidelog_core.errors import InvalidConfig

LIST = LIST_PRICES_FILE.read_text()


def test_the_list_prices_have_every_item_with_unit_and_date() -> None:
    prices = list_prices()
    assert prices.region == "us-east-1"
    assert prices.prices.keys() >= ITEMS.keys()
    for name, price in prices.prices.items():
        assert price.as_of > date(2026, 1, 1), name
        assert price.unit, name


@pytest.mark.parametrize(
    ("name", "count", "dollars"),
    [
        ("object-put", 1_000, 0.005),
        ("object-list", 2_000, 0.01),
        ("object-get", 1_000, 0.0004),
        ("object-delete", 10**9, 0.0),
        ("object-storage", 1_000_000 * SECONDS_PER_MONTH, 0.023),  # a GB for a month
        ("metadata-write", 10**9, 0.625),  # in thousandths of a unit
        ("metadata-read", 500, 0.0000000625),  # half a unit
        ("zone-transfer", 10**9, 0.02),
        ("machine-volume", SECONDS_PER_MONTH * 1_000, 1.28),
        ("machine:i4i.large", 3_600_000, 0.172),
        ("machine:of-which-nobody-heard", 3_600_000, 0.0),
        ("function-call", 1_000_000, 0.20),
        ("function-time", 512 * 2_000, 0.0000166667),  # 512 MiB for two seconds
        ("function-event", 1_000_000, 1.0),
        ("endpoint", 3_600_000, 0.01),
        ("balancer", 3_600_000, 0.0225),
        ("logs", SECONDS_PER_MONTH * 1_000, 12.0),
    ],
)
def test_a_count_costs_what_the_price_list_says(name: str, count: int, dollars: float) -> None:
    assert list_prices().dollars_of(name, count) == pytest.approx(dollars, rel=1e-12)
    [charge] = list_prices().charges({name: count})
    assert charge.dollars == pytest.approx(dollars, rel=1e-12)
    assert charge.is_priced == (name in list_prices().prices)


def test_ten_endpoints_a_balancer_and_logs_stand_there() -> None:
    assert list_prices().standing(3_600_000) == {
        "endpoint": 36_000_000,
        "balancer": 3_600_000,
        "logs": 3_600_000,
    }


def test_a_file_replaces_the_list_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    text = LIST.replace("dollars = 0.025\n", "").replace("dollars = 0.02\n", "dollars = 0.5\n")
    path.write_text(
        text + '\n[machines."m7g.large"]\ndollars = 0.08\nunit = "hour"\nas_of = 2026-11-01\n'
    )
    prices = load_prices(str(path))
    assert prices.dollars_of("zone-transfer", 10**9) == 0.5
    assert prices.dollars_of(machine("m7g.large"), 3_600_000) == 0.08
    assert load_prices("") is list_prices()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("dollars = 0.02\n", "dollars = -1\n", "prices.zone-transfer.dollars must be a number"),
        ("dollars = 0.02\n", "dollars = nan\n", "prices.zone-transfer.dollars must be a number"),
        ("dollars = 0.02\n", "", "prices.zone-transfer.dollars must be a number"),
        ("dollars = 0.02\n", "dollars = true\n", "prices.zone-transfer.dollars must be"),
        ("per = 1_000_000\n", "per = 0\n", "per must be a whole number of at least 1"),
        ('unit = "GB-month"', 'unit = "GB"', "prices.object-storage.unit must be 'GB-month'"),
        ("as_of = 2026-11-22", 'as_of = "today"', "as_of must be a date"),
        ("number = 10\n", "number = -1\n", "prices.endpoint.number must be a whole number"),
        ("[prices.zone-transfer]", "[prices.zone-transfers]", "prices.zone-transfer is missing"),
        ("[prices.zone-transfer]", "[prices.zone-transfers]", "prices.zone-transfers is unknown"),
        ('note = "Lambda"', "note = 1", "prices.function-call.note must be a string"),
        ('note = "Lambda"', "number = 2", "prices.function-call.number is only for endpoint"),
        ('note = "Lambda"', "colour = 2", "prices.function-call.colour is unknown"),
        ('region = "us-east-1"', 'zone = "a"', "zone is unknown"),
        ('region = "us-east-1"', "region = 1", "region must be a string"),
        ("[prices.object-put]", "[", "it is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(old: str, new: str, problem: str) -> None:
    assert old in LIST
    with pytest.raises(InvalidConfig, match=re.escape(problem)):
        parse_prices(LIST.replace(old, new).encode())


def test_a_file_that_is_not_there_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read: No such file"):
        load_prices(str(tmp_path / "none.toml"))
    huge = tmp_path / "huge.toml"
    huge.write_text(LIST + "#" * (1 << 20))
    with pytest.raises(InvalidConfig, match="has more than"):
        load_prices(str(huge))
    wrong = tmp_path / "wrong.toml"
    wrong.write_bytes(b"\xff")
    with pytest.raises(InvalidConfig, match=r"wrong.toml: it is not TOML"):
        load_prices(str(wrong))


def test_a_machine_type_is_a_name() -> None:
    assert parse_config(NodeConfig, {"cost.machine.type": "m7g.large"}).cost_machine_type
    with pytest.raises(InvalidConfig, match="must be an instance type such as"):
        parse_config(NodeConfig, {"cost.machine.type": "a machine"})
