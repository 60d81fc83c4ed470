"""What the collections of garbage look at while a node grows: every thread stands still for it."""

from __future__ import annotations

import subprocess
import sys

OBJECTS_MAX = 50_000  # about 10 ms

GROW = """
import gc
from tidelog_node.__main__ import collect_seldom

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
