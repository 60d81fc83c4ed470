"""A short run of the attacks: nothing that clients or disks do takes a node down.

``make attack`` does them as large as they were seen, and measures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.run import run_scenes
from tests.attack.scenes import SCENES

SHORT_SIZE = 0.02
SHORT_POINTS = {1, 2, 3, 4, 5, 6, 7, 8, 12}  # the others wait, and have tests of their own


@pytest.mark.slow  # each has tests of its own; make attack
def test_short_attacks_take_no_node_down(tmp_path: Path) -> None:
    scenes = [scene for scene in SCENES if scene.point in SHORT_POINTS]
    verdict = run_scenes(tmp_path / "arena", scenes, size=SHORT_SIZE)
    print(verdict.table)
    assert not verdict.problems
    assert verdict.acknowledged > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_attacks_of_the_size_that_was_seen_take_no_node_down(tmp_path: Path) -> None:
    verdict = run_scenes(tmp_path / "arena", SCENES, size=1.0)
    print(verdict.table)
    assert not verdict.problems
    assert verdict.acknowledged > 0
