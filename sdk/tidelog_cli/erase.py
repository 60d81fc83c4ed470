"""``tidelog erase`` removes one key's records from a topic's whole history."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from tidelog_cli.admin_api import AdminApi, AdminUrl, refuse_stores
from tidelog_cli.completion import complete_topic
from tidelog_cli.failures import FAILED, UsageError
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import counted, note, print_json, print_rows
from tidelog_cli.stores import (
    DataDir,
    Metadata,
    Objects,
    StoreLocations,
    locate_stores,
    opened_metadata,
)

if TYPE_CHECKING:
    from tidelog_core.erasure.receipt import ErasureReceipt
    from tidelog_core.rewriting.partition_tier import PartitionTier

KEY_FORMATS = ("text", "hex", "base64")


def erase(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="The topic.", show_default=False, autocompletion=complete_topic
        ),
    ] = None,
    *,
    named_topic: Annotated[
        str | None, typer.Option("--topic", help="The same as TOPIC.", show_default=False)
    ] = None,
    key: Annotated[str, typer.Option("--key", help="The key.", show_default=False)],
    key_format: Annotated[
        str, typer.Option(help=f"Format of the key: {', '.join(KEY_FORMATS)}.")
    ] = "text",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the key's tiered records.")
    ] = False,
    receipt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the whole receipt, with every offset, as JSON.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="How long to wait for leaders and replicas, in seconds.")
    ] = 60.0,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    admin_url: AdminUrl = None,
    json: Json = False,
) -> None:
    """Remove every record of a key from TOPIC, with a receipt in the bucket.

    Tiered segments that contain the key are rewritten; local segments of a tiered topic are
    tiered first and then dropped. For a topic without tiering every replica rewrites its own
    segments. Offsets do not change. Records of the key produced after a partition's leader
    has accepted the request are kept. Waits until the old objects are deleted, at the
    earliest after file.delete.delay.ms. Exit status: 0 complete, 1 incomplete: the receipt
    names the rest; run the command again.
    """
    name = _one_topic(topic, named_topic)
    wanted = parse_key(key, key_format)
    if receipt is not None and dry_run:
        raise UsageError("--dry-run has no receipt: remove --receipt")
    if admin_url is not None:
        refuse_stores(context, "data_dir", "metadata", "objects")
    else:
        locations = locate_stores(data_dir, metadata, objects)
    if dry_run:
        rows = (
            _find_there(AdminApi(admin_url), name, wanted)
            if admin_url is not None
            else asyncio.run(_find(locations, name, wanted))
        )
        _show_found(rows, is_json=json)
        return
    with nullcontext() if receipt is None else receipt.open("w") as file:
        if admin_url is not None:
            summary, document = _erase_there(AdminApi(admin_url), name, wanted, timeout)
        else:
            made = asyncio.run(_erase(locations, name, wanted, timeout))
            summary, document = made.summary(), made.document()
        if file is not None:
            if document is None:
                note("the receipt is too large for the admin API; it is in the bucket")
            file.write(dumps(summary if document is None else document, indent=2) + "\n")
    _report(summary, is_json=json)


def _report(summary: Mapping[str, Any], *, is_json: bool) -> None:
    """Print the result; exit with 1 if the erasure is not complete."""
    if is_json:
        print_json(summary)
    else:
        print(_sentence(summary))
    for partition in summary["partitions"]:
        for problem in partition["problems"]:
            note(f"{summary['topic']}-{partition['partition']}: {problem}")
    if not summary["is_done"]:
        raise typer.Exit(FAILED)


def _erase_there(
    api: AdminApi, topic: str, key: bytes, timeout: float
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Have the admin API erase the key; return the summary and the receipt."""
    api.topics([topic])
    body = {"topic": topic, "key_base64": b64encode(key).decode(), "timeout_seconds": int(timeout)}
    result = api.run_job("/erasures", body)
    return result, result.pop("receipt")


def _find_there(api: AdminApi, topic: str, key: bytes) -> list[dict[str, Any]]:
    api.topics([topic])
    body = {"topic": topic, "key_base64": b64encode(key).decode(), "dry_run": True}
    rows: list[dict[str, Any]] = api.run_job("/erasures", body)["found"]
    return rows


def _one_topic(topic: str | None, named: str | None) -> str:
    if topic is not None and named is not None and topic != named:
        raise UsageError(f"TOPIC is {topic!r} and --topic is {named!r}: give one of them")
    found = topic or named
    if not found:
        raise UsageError("missing argument 'TOPIC'; see 'tidelog erase --help'")
    return found


def _sentence(summary: Mapping[str, Any]) -> str:
    """Return the result for people."""
    topic, receipt = summary["topic"], f"receipt erasure-{summary['erasure_id']}.json"
    partitions = counted(len(summary["partitions"]), "partition")
    if not summary["is_done"]:
        done = sum(one["is_done"] for one in summary["partitions"])
        return f"incomplete: {done} of {partitions} of topic {topic} done; run it again"
    if not summary["found"]:
        return (
            f"nothing found: no record of the key in the {partitions} of topic {topic}; {receipt}"
        )
    records, segments = summary["removed_records"], summary["replaced_segments"]
    return (
        f"{counted(records, 'record')} of the key removed from topic {topic}, "
        f"{counted(segments, 'segment')} replaced; {receipt}"
    )


def _show_found(rows: list[dict[str, Any]], *, is_json: bool) -> None:
    columns = ("topic", "partition", "records", "segments", "of segments")
    print_rows(rows, columns, is_json=is_json)
    total = sum(row["records"] for row in rows)
    note(
        f"dry run: {counted(total, 'tiered record')} of the key would be removed, and those that "
        "are only on nodes, which were not searched"
    )


def parse_key(text: str, key_format: str) -> bytes:
    """Return the key's bytes. Raises ``UsageError``."""
    require_choice("--key-format", key_format, KEY_FORMATS)
    try:
        match key_format:
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(
            f"--key {text!r} is not valid {key_format}; give another --key-format"
        ) from None
    return text.encode()


async def _erase(
    locations: StoreLocations, topic: str, key: bytes, timeout: float
) -> ErasureReceipt:
    from tidelog_core.erasure.topic import erase_key

    async with _tiers(locations, topic) as tiers:
        return await erase_key(tiers, key, erasure_id=uuid4(), wait_seconds=timeout, on_step=note)


async def _find(locations: StoreLocations, topic: str, key: bytes) -> list[dict[str, Any]]:
    from tidelog_core.erasure.tier import find_in_tier

    async with _tiers(locations, topic) as tiers:
        found = [(tier.partition, await find_in_tier(tier, key)) for tier in tiers]
    return [
        {
            "topic": topic,
            "partition": partition,
            "records": one.record_count,
            "segments": one.holding_count,
            "searched_segments": one.segment_count,
        }
        for partition, one in found
    ]


@asynccontextmanager
async def _tiers(locations: StoreLocations, topic: str) -> AsyncIterator[list[PartitionTier]]:
    from tidelog_core.metadata.stored_cluster import select_topics
    from tidelog_core.rewriting.targets import rewrite_targets

    async with opened_metadata(locations.metadata) as (_, image):
        select_topics(image, [topic])
        targets = rewrite_targets(
            image, topic, metadata=locations.metadata, objects=locations.objects
        )
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(target.opened()) for target in targets]
