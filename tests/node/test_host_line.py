"""Hosts take turns in a line."""

from __future__ import annotations

from tidelog_node.host_line import HostLine


def line_of(*items: tuple[str, int]) -> HostLine[int]:
    line: HostLine[int] = HostLine()
    for host, item in items:
        line.add(host, item)
    return line


def test_hosts_take_turns_and_each_hosts_oldest_comes_first() -> None:
    line = line_of(("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5))
    taken = []
    while line:
        host, item = line.take()
        line.end_turn(host)
        taken.append(item)
        if item == 1:
            line.add("b", 6)
    assert taken == [1, 4, 5, 2, 6, 3]


def test_a_host_keeps_its_turn_until_it_is_over() -> None:
    line = line_of(("a", 1), ("b", 2), ("a", 3), ("a", 4))
    assert [line.take(), line.take()] == [("a", 1), ("a", 3)]
    line.end_turn("a")
    assert [line.take(), line.take()] == [("b", 2), ("a", 4)]
    line.end_turn("a")
    assert not line
