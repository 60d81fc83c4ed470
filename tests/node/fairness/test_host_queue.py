"""Hosts take turns in a queue."""

from __future__ import annotations

from tidelog_node.fairness.host_queue import HostQueue


def queue_of(*items: tuple[str, int]) -> HostQueue[int]:
    queue: HostQueue[int] = HostQueue()
    for host, item in items:
        queue.add(host, item)
    return queue


def test_hosts_take_turns_and_each_hosts_oldest_comes_first() -> None:
    queue = queue_of(("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5))
    taken = []
    while queue:
        host, item = queue.take()
        queue.end_turn(host)
        taken.append(item)
        if item == 1:
            queue.add("b", 6)
    assert taken == [1, 4, 5, 2, 6, 3]


def test_a_host_keeps_its_turn_until_it_is_over() -> None:
    queue = queue_of(("a", 1), ("b", 2), ("a", 3), ("a", 4))
    assert [queue.take(), queue.take()] == [("a", 1), ("a", 3)]
    queue.end_turn("a")
    assert [queue.take(), queue.take()] == [("b", 2), ("a", 4)]
    queue.end_turn("a")
    assert not queue
