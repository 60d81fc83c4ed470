"""``tidelog cost`` shows what a cluster costs by item and by topic, and a forecast of its month."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog_cli.options import Json
from tidelog_cli.output import print_json, print_table
from tidelog_cli.storage.admin_api import AdminUrl, chosen_api
from tidelog_cli.stores import DataDir, Metadata, locate_metadata, opened_metadata

AWS_METADATA = "dynamodb:"
HOUR_MS = 3_600_000
TOPICS_MAX = 100


class Last(StrEnum):
    """The time that is shown."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class By(StrEnum):
    """How costs are divided."""

    ITEM = "item"
    TOPIC = "topic"


def cost(
    context: typer.Context,
    *,
    last: Annotated[
        Last,
        typer.Option(
            help="The last whole hour and the current one; the last 24 hours; or this calendar "
            "month. In UTC."
        ),
    ] = Last.HOUR,
    by: Annotated[
        By | None, typer.Option(help="Show only items, or only topics.", show_default=False)
    ] = None,
    topics: Annotated[
        int, typer.Option(min=1, max=TOPICS_MAX, help="How many topics to name.")
    ] = 20,
    price_file: Annotated[
        Path | None,
        typer.Option(
            help="Prices to count with, instead of the list prices of us-east-1.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    admin_url: AdminUrl = None,
    json: Json = False,
) -> None:
    """Show what the cluster costs, and what the month will cost if it goes on like this.

    Nodes and functions write what they count to the metadata store once a minute; this multiplies
    it by prices. Of a cluster that is not on AWS it shows what the same would cost there.
    """
    api = chosen_api(context, admin_url, "data_dir", "metadata", "price_file")
    if api is not None:
        query = {"last": last.value, "topics": topics}
        document = api.ask("GET", "/costs", query=query)
    else:
        url = locate_metadata(data_dir, metadata)
        document = asyncio.run(_read(url, last, topics, price_file))
    if json:
        print_json(document)
        return
    _show(document, by)


async def _read(
    metadata_url: str, last: Last, topics: int, price_file: Path | None
) -> dict[str, Any]:
    from tidelog_core.clock import wall_clock_ms
    from tidelog_core.config import NodeConfig
    from tidelog_core.cost.document import cost_document
    from tidelog_core.cost.overview import read_overview
    from tidelog_core.cost.prices import load_prices
    from tidelog_core.cost.report import Period
    from tidelog_core.metadata.node_config import effective_node_config

    prices = load_prices("" if price_file is None else str(price_file))
    async with opened_metadata(metadata_url) as (store, image):
        config = effective_node_config(NodeConfig(), image, None)
        overview = await read_overview(store, prices, config, now_ms=wall_clock_ms())
    return cost_document(
        overview,
        prices,
        Period(last.value),
        topics_max=topics,
        is_on_aws=metadata_url.startswith(AWS_METADATA),
    )


def _show(document: Mapping[str, Any], by: By | None) -> None:
    hours = (document["end_ms"] - document["start_ms"]) / HOUR_MS
    if not document["items"]:
        print(
            f"Nothing is in the ledger for the last {document['last']}: nodes write once a minute."
        )
    else:
        since = datetime.fromtimestamp(document["start_ms"] / 1000, UTC)
        print(
            f"{_dollars(document['dollars'])} since {since:%Y-%m-%d %H:%M} UTC ({hours:.1f} hours),"
            f" {_dollars(document['dollars_per_hour'])} an hour"
        )
    print(document["note"])
    print(f"Prices: {document['price_region'] or 'your file'}, as of {document['price_date']}.")
    if document["items"] and by is not By.TOPIC:
        print()
        _show_items(document)
    if document["topics"] and by is not By.ITEM:
        print()
        _show_topics(document)
    print()
    for name, budget in (("month", document["month"]), ("day", document["day"])):
        print(_budget(name, budget))


def _show_items(document: Mapping[str, Any]) -> None:
    print_table(
        ("item", "amount", "unit", "dollars", "of"),
        [
            (
                item["item"],
                f"{item['units']:,.6g}",
                item["unit"],
                _dollars(item["dollars"]) if item["is_priced"] else "no price",
                item["meaning"],
            )
            for item in document["items"]
        ],
    )


def _show_topics(document: Mapping[str, Any]) -> None:
    rows: list[Sequence[object]] = [
        (topic["topic"], _dollars(topic["dollars"]), _dearest(topic["items"]))
        for topic in document["topics"]
    ]
    rows.append(("(no topic)", _dollars(document["unassigned_dollars"]), "machines and the like"))
    print_table(("topic", "dollars", "mostly"), rows)


def _dearest(items: Sequence[Mapping[str, Any]]) -> str:
    return str(max(items, key=lambda item: item["dollars"])["item"]) if items else ""


def _budget(name: str, budget: Mapping[str, Any]) -> str:
    text = (
        f"This {name}: {_dollars(budget['spent_dollars'])} so far,"
        f" {_dollars(budget['forecast_dollars'])} at its end"
    )
    if budget["budget_dollars"] is None:
        return f"{text}."
    verdict = "which it passes" if budget["is_passed"] else "which is enough"
    return f"{text}; the budget is {_dollars(budget['budget_dollars'])}, {verdict}."


def _dollars(amount: float) -> str:
    """Return an amount with cents, or with more digits if it is small."""
    if amount == 0 or amount >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.6f}"
