"""Subscribers: all are called, and none replaces another."""

from __future__ import annotations

from tidelog_core.subscribers import Subscribers


def test_all_subscribers_are_called_in_the_order_of_subscription() -> None:
    subscribers, heard = Subscribers[[str]](), list[str]()
    subscribers.subscribe(lambda said: heard.append(f"first {said}"))
    subscribers.subscribe(lambda said: heard.append(f"second {said}"))
    subscribers.notify("news")
    assert heard == ["first news", "second news"]


def test_one_that_has_unsubscribed_is_not_called_and_the_others_are() -> None:
    subscribers, heard = Subscribers[[int]](), list[int]()
    leave = subscribers.subscribe(lambda number: heard.append(-number))
    subscribers.subscribe(heard.append)
    leave()
    subscribers.notify(1)
    assert heard == [1]
    assert len(subscribers) == 1


def test_one_that_unsubscribes_in_its_call_keeps_no_other_from_hearing() -> None:
    subscribers, heard = Subscribers[[]](), list[str]()

    def leave() -> None:
        heard.append("left")
        unsubscribe()

    unsubscribe = subscribers.subscribe(leave)
    subscribers.subscribe(lambda: heard.append("other"))
    subscribers.notify()
    subscribers.notify()
    assert heard == ["left", "other", "other"]
