"""``tidelog erase`` removes one key's records from a topic's whole history."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from tidelog_cli.completion import complete_topic
from tidelog_cli.failures import FAILED, UsageError
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import counted, note, print_json, print_rows
from tidelog_cli.storage.admin_api import AdminUrl, chosen_api
from tidelog_cli.storage.erasers import ApiEraser, Erased, Eraser, StoreEraser
from tidelog_cli.stores import DataDir, Metadata, Objects, locate_stores

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
    earliest after file.delete.delay.ms, and of a diskless topic until no chain has a copy
    (diskless.wal.max.age.ms, an hour; at most two). Exit status: 0 complete, 1 incomplete: the
    receipt names the rest; run the command again.
    """
    name = _one_topic(topic, named_topic)
    wanted = parse_key(key, key_format)
    if receipt is not None and dry_run:
        raise UsageError("--dry-run has no receipt: remove --receipt")
    eraser: Eraser
    api = chosen_api(context, admin_url, "data_dir", "metadata", "objects")
    if api is not None:
        eraser = ApiEraser(api)
    else:
        eraser = StoreEraser(locate_stores(data_dir, metadata, objects))
    if dry_run:
        _show_found(eraser.find(name, wanted), is_json=json)
        return
    # It is opened before anything is erased, and emptied when there is something to write.
    with nullcontext() if receipt is None else receipt.open("a") as file:
        erased = eraser.erase(name, wanted, wait_seconds=timeout, has_receipt=receipt is not None)
        if file is not None:
            _write_receipt(file, erased)
    _report(erased.summary, is_json=json)


def _write_receipt(file: TextIO, erased: Erased) -> None:
    if file.seekable():
        file.truncate(0)
    file.write(dumps(erased.receipt or erased.summary, indent=2) + "\n")


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
    # The admin API does not list all of very many partitions.
    count = summary.get("partition_count", len(summary["partitions"]))
    partitions = counted(count, "partition")
    if not summary["is_done"]:
        done = count - sum(not one["is_done"] for one in summary["partitions"])
        return f"incomplete: {done} of {partitions} of topic {topic} done; run it again"
    if not summary["found"]:
        return (
            f"nothing found: no record of the key in the {partitions} of topic {topic}"
            f"{_chains(summary)}; {receipt}"
        )
    records, segments = summary["removed_records"], summary["replaced_segments"]
    return (
        f"{counted(records, 'record')} of the key removed from topic {topic}, "
        f"{counted(segments, 'segment')} replaced{_chains(summary)}; {receipt}"
    )


def _chains(summary: Mapping[str, Any]) -> str:
    """Return when the last copies in chains were gone; empty for topics that have none."""
    gone_ms = max((one.get("wal_copies_gone_ms", 0) for one in summary["partitions"]), default=0)
    if not gone_ms:
        return ""
    return f", wal copies gone at {datetime.fromtimestamp(gone_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


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
