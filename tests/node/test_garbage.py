"""What the collections of garbage look at while a node grows: every thread stands still for it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

from tidelog_node.wire.produce import ProduceRequest

from tests.node.replication.led_node import PRODUCE_VERSION, led_node
from tests.support.batches import batch_of
from tests.support.request_contexts import context_of

OBJECTS_MAX = 50_000  # about 10 ms

GROW = """
import gc
from tidelog_node.process import collect_seldom

seen = []

def on_collection(phase, info):
    if phase == "start":
        seen.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

collect_seldom()
gc.callbacks.append(on_collection)
kept = [[] for _ in range(600_000)]
print(len(seen), max(seen))
"""


def test_no_collection_looks_at_much_of_what_a_growing_node_keeps() -> None:
    """As it keeps ten thousand new partitions, of a hundred objects each or so."""
    ran = subprocess.run(
        [sys.executable, "-c", GROW], check=True, stdout=subprocess.PIPE, text=True
    )
    count, most = map(int, ran.stdout.split())
    assert count > 10
    assert most <= OBJECTS_MAX


async def test_nothing_of_a_refused_produce_is_left_to_collections(tmp_path: Path) -> None:
    """They come seldom, and it would keep all records of the request that long."""
    async with led_node(tmp_path) as node:
        records = memoryview(bytearray(batch_of(b"x")))
        request = ProduceRequest(None, 1, 1000, [(b"nope", [(0, records)])])
        alive = weakref.ref(request.topics[0][1][0][1])
        del records
        gc.disable()
        try:
            assert node.produce.handle(request, context_of(PRODUCE_VERSION, api_key=0))
            del request
            assert alive() is None
        finally:
            gc.enable()
