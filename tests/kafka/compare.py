"""The same requests to Apache Kafka and to Tidelog, and the answers side by side.

A case is a generator that takes a ``Peer`` and yields (label, answer) pairs; it runs
once against each broker. ``@compared`` makes a test of it: values that differ between any
two clusters (ids, addresses, clocks) are normalised, and all other fields must be equal,
except for the differences that ``allowed.py`` lists with their reasons.

If new topics are diskless (``tests/support/diskless_default.py``), Tidelog's have ``diskless.enable=true``
and leader epochs that begin with 1: the leader of a new partition begins a new epoch for its chain.
"""

from __future__ import annotations

import fnmatch
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tidelog_core.records.batch import LOG_OVERHEAD

from tests.kafka.allowed import ALLOWED, Allowed
from tests.support.diskless_default import IS_DISKLESS
from tests.support.peer import Peer

Case = Callable[[Peer], Iterator[tuple[str, Any]]]

SHORT_WAIT_MS = 500
"""For requests that wait."""
LONG_WAIT_MS = 4_000
"""For requests that do not: no broker is so slow that its answer looks like a wait."""

# Fields whose values are each broker's own: only their presence is compared.
PRESENCE = frozenset(
    {
        "cluster_id",
        "error_message",
        "batch_index_error_message",
        "host",
        "log_dir",
        "member_id",
        "leader",
        "client_host",
        "coordinator_host",
        "log_append_time_ms",
        "log_append_time",
    }
)
# Tidelog may have a text where Kafka has only a code.
MESSAGE = "error_message"
# Not compared: throttle times, sizes of disks, and descriptions of settings.
LEFT_OUT = frozenset({"throttle_time", "total_bytes", "usable_bytes", "documentation"})
POSITIVE = frozenset({"port", "producer_id", "session_id"})


@dataclass(frozen=True, slots=True)
class Pair:
    """The two brokers."""

    kafka: Peer
    tidelog: Peer

    def close(self) -> None:
        """Close the connections to both."""
        self.kafka.close()
        self.tidelog.close()


def compared(case: Case) -> Callable[[Pair], None]:
    """Return the test that runs ``case`` against both brokers and compares."""

    def test(pair: Pair) -> None:
        expected = _observe(case, pair.kafka)
        actual = _observe(case, pair.tidelog)
        differences = list(_differences(expected, actual))
        allowed = [entry for entry in ALLOWED if entry.case == case.__name__]
        left = [d for d in differences if not any(_is_allowed(d, entry) for entry in allowed)]
        stale = [a for a in allowed if not any(_is_allowed(d, a) for d in differences)]
        lines = [f"{path}: kafka {one!r}, tidelog {two!r}" for path, one, two in left]
        lines += [f"allowed but equal now: {entry.path}" for entry in stale]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)

    test.__name__ = case.__name__
    test.__doc__ = case.__doc__
    test.__module__ = case.__module__
    return test


def timed(ask: Callable[[], Any], wait_ms: int) -> dict[str, Any]:
    """Return the answer to a request that may wait for ``wait_ms``, and whether it did."""
    started = time.monotonic()
    answer = ask()
    return {"answer": answer, "waited": 1000 * (time.monotonic() - started) > 0.9 * wait_ms}


def _observe(case: Case, peer: Peer) -> dict[str, Any]:
    try:
        observed: dict[str, Any] = {}
        for label, answer in case(peer):
            assert label not in observed, f"two observations are called {label}"
            observed[label] = _normalised(answer, peer)
        return observed
    finally:
        peer.close()


def _normalised(value: Any, peer: Peer, name: str = "") -> Any:
    if isinstance(value, dict):
        if value.get("error_code", "none") != "none" and "aborted_transactions" in value:
            # Kafka answers null or an empty list, by where the error arose; clients ignore both.
            value = {**value, "aborted_transactions": value["aborted_transactions"] or []}
        return {k: _normalised(v, peer, k) for k, v in value.items() if k not in LEFT_OUT}
    if isinstance(value, list):
        items = [_normalised(item, peer, name) for item in value]
        # Brokers answer in the order of their hash tables.
        return sorted(items, key=_order) if items and isinstance(items[0], dict) else items
    if name in PRESENCE:
        return "absent" if value in {None, "", -1} else "present"
    if name in POSITIVE and isinstance(value, int):
        return "some" if value >= (name == "session_id") else value  # 0 is no session
    if isinstance(value, uuid.UUID):
        known = {topic_id: topic for topic, topic_id in peer.topic_ids.items()}
        return f"id of {known[value]}" if value in known else "unknown id"
    return _whole_batches(value) if name == "records" and isinstance(value, bytes) else value


def _whole_batches(records: bytes) -> bytes:
    """Return the batches that are whole.

    Where a limit cuts a batch, Kafka sends its first part, which every client drops and fetches
    again. Tidelog ends with a whole batch, if it knows without a read where the batches begin.
    """
    end = 0
    while end + LOG_OVERHEAD <= len(records):
        size_bytes = int.from_bytes(records[end + 8 : end + LOG_OVERHEAD], "big")
        if end + LOG_OVERHEAD + size_bytes > len(records):
            break
        end += LOG_OVERHEAD + size_bytes
    return records[:end]


def _order(item: dict[str, Any]) -> str:
    keys = (
        "name",
        "topic",
        "group_id",
        "resource_name",
        "api_key",
        "partition_index",
        "partition",
    )
    return repr([item.get(key) for key in keys]) + repr(item)


def _differences(expected: Any, actual: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected.keys() | actual.keys():
            yield from _differences(
                expected.get(key, "absent"), actual.get(key, "absent"), f"{path}/{key}"
            )
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (one, two) in enumerate(zip(expected, actual, strict=True)):
            yield from _differences(one, two, f"{path}/{index}")
    elif (
        expected != actual
        and not (path.endswith(MESSAGE) and expected == "absent")
        and not (IS_DISKLESS and _is_of_diskless(path.rpartition("/")[2], expected, actual))
    ):
        yield path, expected, actual


def _is_of_diskless(name: str, expected: Any, actual: Any) -> bool:
    """Return whether a field differs only by what every diskless topic has."""
    match name:
        case "diskless.enable":
            return (expected, actual) == ("absent", "true")
        case "leader_epoch":
            return (expected, actual) == (0, 1)
        case "records" if isinstance(expected, bytes) and isinstance(actual, bytes):
            return _without_epochs(expected) == _without_epochs(actual)
    return False


def _without_epochs(records: bytes) -> bytes:
    """Return the bytes of batches with leader epochs of 0."""
    found = bytearray(records)
    position = 0
    while position + LOG_OVERHEAD + 4 <= len(found):
        size_bytes = int.from_bytes(found[position + 8 : position + LOG_OVERHEAD], "big")
        found[position + LOG_OVERHEAD : position + LOG_OVERHEAD + 4] = bytes(4)
        position += LOG_OVERHEAD + size_bytes
    return bytes(found)


def _is_allowed(difference: tuple[str, Any, Any], entry: Allowed) -> bool:
    path, kafka, tidelog = difference
    return (
        fnmatch.fnmatch(path, entry.path)
        and entry.kafka in {..., kafka if _hashable(kafka) else ...}
        and entry.tidelog in {..., tidelog if _hashable(tidelog) else ...}
    )


def _hashable(value: object) -> bool:
    return not isinstance(value, dict | list)
