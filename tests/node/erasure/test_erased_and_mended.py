"""A key that was erased, and a segment that is fetched again from a leader that still has it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import KeyErasure, ReplicaErasure
from tidelog_node.erasure.rewriting_eraser import RewritingEraser

from tests.node.upkeep.repair_world import CopylessTier, Mending, mending


def eraser_of(one: Mending) -> RewritingEraser:
    return RewritingEraser(
        one.node.context, replicas=one.node.replicas, tier=CopylessTier(), busy=set()
    )


async def request_done(one: Mending) -> KeyErasure:
    """Write a request that this node has carried out."""
    request = KeyErasure(
        topic_id=one.replica.topic_id,
        partition=0,
        key_sha256=sha256(b"key").hexdigest(),
        up_to=one.replica.log.log_end_offset,
        replicas=(ReplicaErasure(1, is_done=True),),
    )
    await one.node.store.commit([records.put(request)])
    return request


async def is_done(one: Mending, request: KeyErasure) -> bool:
    item = await one.node.store.get(request.item_id)
    assert item is not None
    return KeyErasure.from_item(item).of(1).is_done


async def test_an_erasure_is_done_again_after_a_segment_was_fetched_again(tmp_path: Path) -> None:
    async with mending(tmp_path) as one:
        request, eraser = await request_done(one), eraser_of(one)
        await eraser.start()
        assert await is_done(one, request)
        one.leader.answers = [(0, one.whole[1])]
        await one.follow()
        one.damage(1)
        await one.attempt(1)
        assert one.paths[1].read_bytes() == one.whole[1]
        await eraser.start()
        assert not await is_done(one, request)


async def test_an_erasure_is_done_again_after_the_log_was_fetched_again(tmp_path: Path) -> None:
    async with mending(tmp_path) as one:
        request, eraser = await request_done(one), eraser_of(one)
        await eraser.start()
        end_offset = one.replica.log.log_end_offset
        one.replica.log.close()
        one.node.directories.set_aside(one.replica)
        one.replica.allow_reopening()
        for content in one.whole:
            one.replica.log.append_as_follower(bytearray(content))
        assert one.replica.log.log_end_offset == end_offset
        await eraser.start()
        assert not await is_done(one, request)
