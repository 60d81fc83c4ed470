"""How waits grow."""

from __future__ import annotations

from tidelog_core.back_off import back_off_seconds


def test_each_attempt_in_vain_doubles_the_wait_up_to_the_longest() -> None:
    waits = [back_off_seconds(count, first=1.0, longest=10.0) for count in (0, 1, 2, 3, 4, 10**9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
