"""``tidelog erase`` removes one key's records from a topic's whole history."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from tidelog_cli.failures import FAILED, UsageError
from tidelog_cli.options import require_choice
from tidelog_cli.output import note, print_json
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

KEY_FORMATS = ("text", "hex", "base64")


def erase(
    *,
    topic: Annotated[str, typer.Option("--topic", help="The topic.", show_default=False)],
    key: Annotated[str, typer.Option("--key", help="The key.", show_default=False)],
    key_format: Annotated[
        str, typer.Option(help=f"Format of the key: {', '.join(KEY_FORMATS)}.")
    ] = "text",
    timeout: Annotated[
        float, typer.Option(min=0, help="How long to wait for leaders and replicas, in seconds.")
    ] = 60.0,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
) -> None:
    """Remove every record of a key from a topic, and print a receipt.

    Tiered segments that contain the key are rewritten; local segments of a tiered topic are
    tiered first and then dropped. For a topic without tiering every replica rewrites its own
    segments. Offsets do not change. Records of the key produced after a partition's leader
    has accepted the request are kept. Waits until the old objects are deleted, at the
    earliest after file.delete.delay.ms. Exit status: 0 complete, 1 incomplete: the receipt
    names the rest; run the command again.
    """
    wanted = parse_key(key, key_format)
    locations = locate_stores(data_dir, metadata, objects)
    receipt = asyncio.run(_erase(locations, topic, wanted, timeout))
    print_json(receipt.document())
    for partition in receipt.partitions:
        for problem in partition.problems:
            note(f"{topic}-{partition.partition}: {problem}")
    if not receipt.is_done:
        raise typer.Exit(FAILED)


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
    from tidelog_core.metadata.stored_cluster import select_topics
    from tidelog_core.rewriting.targets import rewrite_targets

    async with opened_metadata(locations.metadata) as (_, image):
        select_topics(image, [topic])
        targets = rewrite_targets(
            image, topic, metadata=locations.metadata, objects=locations.objects
        )
    async with AsyncExitStack() as stack:
        tiers = [await stack.enter_async_context(target.opened()) for target in targets]
        return await erase_key(tiers, key, erasure_id=uuid4(), wait_seconds=timeout)
