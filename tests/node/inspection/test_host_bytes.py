"""The number of bytes that may wait to be inspected."""

from __future__ import annotations

from tidelog_node.inspection.host_bytes import HostBytes


def test_a_host_has_half_and_leaves_the_rest_to_others() -> None:
    waiting = HostBytes(1_000)
    assert waiting.take("many", 300)
    assert waiting.take("many", 200)
    assert not waiting.take("many", 1)
    assert waiting.take("one", 400)
    assert not waiting.take("other", 101)
    waiting.give_back("many", 300)
    assert waiting.take("many", 300)


def test_what_finds_nothing_before_it_is_let_in_however_large_it_is() -> None:
    waiting = HostBytes(1_000)
    assert waiting.take("one", 5_000)
    assert not waiting.take("other", 1)
    waiting.give_back("one", 5_000)
    assert waiting.take("other", 600)
    assert not waiting.take("other", 1)
