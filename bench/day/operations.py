"""The measured DynamoDB units and S3 requests of the product's operations.

``bench.day.measure`` runs the code and counts. ``tests/bench/test_day_operations.py`` fails if
these figures differ from the counts. Units are by kind of collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """The units and requests of one operation."""

    write_units: Mapping[str, int] = field(default_factory=dict)
    read_units: Mapping[str, float] = field(default_factory=dict)
    transactions: int = 0
    logged_commits: int = 0  # each advances the cluster version
    requests: Mapping[str, int] = field(default_factory=dict)  # of S3, by method

    @property
    def writes(self) -> int:
        """Write units of all collections."""
        return sum(self.write_units.values())

    @property
    def reads(self) -> float:
        """Read units of all collections."""
        return sum(self.read_units.values())


COSTS: Mapping[str, Cost] = {
    "renew a lease": Cost(write_units={"broker-lease": 1}),
    "read 120 leases": Cost(read_units={"broker-lease": 5}),
    "poll, nothing has changed": Cost(read_units={"#cluster": 1}),
    "poll, a partition has changed": Cost(
        read_units={"#cluster": 1, "#changelog": 0.5, "partition": 1}
    ),
    "a replica leaves an ISR": Cost(
        write_units={"partition": 2, "#cluster": 2, "#changelog": 4},
        transactions=1,
        logged_commits=1,
    ),
    "a replica joins an ISR": Cost(
        write_units={"partition": 2, "broker": 2, "#cluster": 2, "#changelog": 4},
        transactions=1,
        logged_commits=1,
    ),
    "take 1 partition over": Cost(
        write_units={"partition": 2, "broker-lease": 2, "#cluster": 2, "#changelog": 4},
        transactions=1,
        logged_commits=1,
    ),
    "take 24 partitions over": Cost(
        write_units={"partition": 48, "broker-lease": 2, "#cluster": 2, "#changelog": 4},
        transactions=1,
        logged_commits=1,
    ),
    "begin a copy": Cost(
        write_units={"segment": 2, "partition": 2}, read_units={"partition": 1}, transactions=1
    ),
    "upload a segment": Cost(requests={"PUT": 2, "GET": 1}),
    "finish a copy": Cost(
        write_units={"segment": 2, "partition": 2}, read_units={"partition": 1}, transactions=1
    ),
    "list 20 segments": Cost(read_units={"segment": 3}),
    "a function expires a segment": Cost(
        write_units={"partition": 2, "#cluster": 2, "#changelog": 4, "segment": 1},
        read_units={
            "cluster": 1,
            "node-config": 1,
            "topic": 1,
            "partition": 2,
            "rewrite-claim": 2,
            "segment": 3,
        },
        transactions=1,
        logged_commits=1,
        requests={"PUT": 1, "GET": 1, "DELETE": 1},
    ),
    "a function deletes a segment": Cost(
        write_units={"segment": 1},
        read_units={
            "cluster": 1,
            "node-config": 1,
            "topic": 1,
            "partition": 1,
            "rewrite-claim": 2,
            "segment": 3,
        },
        requests={"DELETE": 2},
    ),
    "a function finds nothing due": Cost(
        read_units={
            "cluster": 1,
            "node-config": 1,
            "topic": 1,
            "partition": 1,
            "rewrite-claim": 2,
            "segment": 3,
        }
    ),
    "a node advances a log start": Cost(
        write_units={"partition": 2, "#cluster": 2, "#changelog": 4},
        read_units={"partition": 1},
        transactions=1,
        logged_commits=1,
    ),
    "a node begins a deletion": Cost(write_units={"segment": 1}),
    "a node drops a segment": Cost(write_units={"segment": 1}),
    "scrub 25 partitions": Cost(
        read_units={
            "cluster": 1,
            "broker": 1,
            "function-progress": 1,
            "topic": 1,
            "deleted-topic": 1,
            "scrub-sighting": 1,
            "segment": 27,
            "partition": 25,
        },
        requests={"LIST": 1},
    ),
    "assign partitions to 15 members": Cost(write_units={"group": 2, "member": 4}, transactions=1),
    "commit the offset of a topic's only partition": Cost(
        write_units={"offset": 2, "group": 2}, transactions=1
    ),
    "commit 4 of the 60 offsets in a page": Cost(
        write_units={"offset": 6, "group": 2}, transactions=1
    ),
    "take a block of producer ids": Cost(write_units={"producer-id": 1}),
    "carry out a transaction": Cost(write_units={"transaction": 3}),
}

# Bytes of items that are read many at a time.
ITEM_BYTES: Mapping[str, int] = {
    "segment": 599,
    "lease": 155,
    "changelog entry of one key": 117,
    "changelog entry, each further key": 30,
}
