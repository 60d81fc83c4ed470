"""The requests and bytes of one of a node's workers, since they were read last.

A worker counts by topic, up to a number of topics, and in all. Its counters begin again with
another incarnation of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tidelog_core.cost.collecting import add_bytes, add_requests
from tidelog_core.cost.entries import Tally
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.tier.keys import split_topic_folder
from tidelog_core.turns import Turn

K = TypeVar("K")

SENT, RECEIVED = "sent", "received"  # bytes, beside requests by method


class WorkerCounts:
    """The last counts of one worker. For the node's event loop."""

    def __init__(self) -> None:
        self.last: dict[str, dict[str, int]] = {}  # by topic folder; "" for all others
        self._incarnation = ""  # that they are of

    async def count(self, tally: Tally, status: Mapping[str, Any], image: ClusterImage) -> None:
        """Add the growth of the counts to the tally."""
        if status["incarnation"] != self._incarnation:
            self._incarnation = status["incarnation"]
            self.last = {}
        totals: dict[str, int] = {}
        for method, _, count in status["requests"]:
            totals[method] = totals.get(method, 0) + count
        totals |= {SENT: status["sent_bytes"], RECEIVED: status["received_bytes"]}
        rest, turn = dict(totals), Turn()
        for folder, requests, sent_bytes, received_bytes in status["topics"]:
            await turn.step()
            found = {**requests, SENT: sent_bytes, RECEIVED: received_bytes}
            for what, count in found.items():
                rest[what] -= count
            last = self.last.get(folder, {})
            if any(found.get(what, 0) < count for what, count in last.items()):
                self._join_rest(folder)
            _add_objects(tally, self._grown_of(folder, found), _topic_name(image, folder))
        kept = {"", *(folder for folder, *_ in status["topics"])}
        for folder in self.last.keys() - kept:
            self._join_rest(folder)
        _add_objects(tally, self._grown_of("", rest), None)

    def _join_rest(self, folder: str) -> None:
        """Note that a folder's counters were dropped; the rest takes over their counts."""
        rest = self.last.setdefault("", {})
        for what, count in self.last.pop(folder).items():
            rest[what] = rest.get(what, 0) + count

    def _grown_of(self, folder: str, found: Mapping[str, int]) -> dict[str, int]:
        last = self.last.setdefault(folder, {})
        return {what: grown(last, what, count) for what, count in found.items()}


def grown(last: dict[K, int], key: K, value: int) -> int:
    """Return by how much a counter has grown since it was read last."""
    before = last.get(key, 0)
    last[key] = value
    return value - before if value >= before else value


def _add_objects(tally: Tally, grown: Mapping[str, int], topic: str | None) -> None:
    """Count requests by method, and the bytes that were sent and received."""
    for what, count in grown.items():
        if what not in (SENT, RECEIVED):
            add_requests(tally, what, count, topic=topic)
    add_bytes(tally, sent=grown[SENT], received=grown[RECEIVED], topic=topic)


def _topic_name(image: ClusterImage, folder: str) -> str:
    """Return the name of the topic with a folder in the bucket."""
    name, topic_id = split_topic_folder(folder)
    topic = image.topic_by_id(topic_id)
    if topic is not None:
        return topic.name
    deleted = image.deleted_topics.get(topic_id)
    return name if deleted is None else deleted.name
