"""The things that cost money, and how they are counted.

Counts are whole numbers in small units, so that sums are exact however they are split: over nodes,
minutes and restarts. ``Item.divisor`` says how many of them make one unit of the price list.
A GB is 10^9 bytes; a month has 730 hours, as on AWS's bills.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_HOURS = 730
SECONDS_PER_MONTH = MONTH_HOURS * 3600
BYTES_PER_GB = 1_000_000_000
BYTES_PER_KB = 1_000
MACHINE_PREFIX = "machine:"  # and the instance type
OTHER_TOPICS = "(others)"  # all topics beyond the limit; it is not a legal topic
TOPIC_SEPARATOR = "/"  # between topic and item; no topic's name has one


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of counted thing."""

    name: str
    line: str  # the line of a bill that it is part of
    unit: str  # of the price list
    divisor: int  # counts in one such unit
    meaning: str


OBJECT_PUT = "object-put"
OBJECT_LIST = "object-list"
OBJECT_GET = "object-get"
OBJECT_DELETE = "object-delete"
OBJECT_SENT = "object-sent"
OBJECT_RECEIVED = "object-received"
OBJECT_STORAGE = "object-storage"
METADATA_WRITE = "metadata-write"
METADATA_READ = "metadata-read"
ZONE_TRANSFER = "zone-transfer"
MACHINE_VOLUME = "machine-volume"
FUNCTION_CALL = "function-call"
FUNCTION_TIME = "function-time"
FUNCTION_EVENT = "function-event"
ENDPOINT = "endpoint"
BALANCER = "balancer"
LOGS = "logs"

MACHINES_LINE = "machines"
OBJECT_REQUESTS_LINE = "object requests"
ENDPOINTS_LINE = "endpoints and load balancer"

_ITEMS = (
    Item(OBJECT_PUT, OBJECT_REQUESTS_LINE, "request", 1, "writes to the object store"),
    Item(OBJECT_LIST, OBJECT_REQUESTS_LINE, "request", 1, "pages of listings of it"),
    Item(OBJECT_GET, OBJECT_REQUESTS_LINE, "request", 1, "reads from it, GET and HEAD"),
    Item(OBJECT_DELETE, OBJECT_REQUESTS_LINE, "request", 1, "deletions, up to 1,000 keys each"),
    Item(OBJECT_SENT, "object transfer", "GB", BYTES_PER_GB, "bytes to the object store"),
    Item(OBJECT_RECEIVED, "object transfer", "GB", BYTES_PER_GB, "bytes from it"),
    Item(  # counted in kB and seconds
        OBJECT_STORAGE,
        "object storage",
        "GB-month",
        BYTES_PER_GB // BYTES_PER_KB * SECONDS_PER_MONTH,
        "tiered segments, for the time that they were stored",
    ),
    Item(METADATA_WRITE, "metadata store", "write unit", 1_000, "writes to the metadata store"),
    Item(METADATA_READ, "metadata store", "read unit", 1_000, "reads from it"),
    Item(
        ZONE_TRANSFER,
        "transfer between zones",
        "GB",
        BYTES_PER_GB,
        "bytes that followers fetched from leaders in other zones",
    ),
    Item(  # counted in milliseconds, as machines are
        MACHINE_VOLUME, MACHINES_LINE, "month", MONTH_HOURS * HOUR_MS, "root volumes of machines"
    ),
    Item(FUNCTION_CALL, "functions", "call", 1, "invocations of functions"),
    Item(  # counted in MiB and milliseconds
        FUNCTION_TIME, "functions", "GB-second", 1_024 * 1_000, "memory and time of functions"
    ),
    Item(FUNCTION_EVENT, "functions", "event", 1, "events of the bucket"),
    Item(  # the next three are counted in milliseconds
        ENDPOINT, ENDPOINTS_LINE, "hour", HOUR_MS, "interface endpoints, each in one zone"
    ),
    Item(BALANCER, ENDPOINTS_LINE, "hour", HOUR_MS, "network load balancers"),
    Item(LOGS, "logs", "month", MONTH_HOURS * HOUR_MS, "logs, metrics, alarms, dashboard"),
)
ITEMS: Mapping[str, Item] = {item.name: item for item in _ITEMS}
STANDING = (ENDPOINT, BALANCER, LOGS)  # paid for by the hour, also by an idle cluster

Counts = Mapping[str, int]
"""Numbers by the name of their item; of topics by ``<topic>/<item>``."""


def machine(instance_type: str) -> str:
    """Return the name of the item for the time of a machine, counted in milliseconds."""
    return MACHINE_PREFIX + instance_type


def item_of(name: str) -> Item:
    """Return the item; one that a newer program counts has no price and no unit."""
    if name.startswith(MACHINE_PREFIX):
        instance = name.removeprefix(MACHINE_PREFIX)
        return Item(name, MACHINES_LINE, "hour", HOUR_MS, f"machines, {instance}")
    return ITEMS.get(name) or Item(name, "others", "count", 1, "unknown to this version")


def add_up(many: Iterable[Counts]) -> Counter[str]:
    """Return the sum."""
    total = Counter[str]()
    for counts in many:
        for name, count in counts.items():
            total[name] += count
    return total


def of_topic(topic: str, name: str) -> str:
    """Return the key of a topic's count."""
    return f"{topic}{TOPIC_SEPARATOR}{name}"


def by_topic(counts: Counts) -> dict[str, Counter[str]]:
    """Return the counts of each topic by item."""
    found: dict[str, Counter[str]] = {}
    for key, count in counts.items():
        topic, _, name = key.partition(TOPIC_SEPARATOR)
        found.setdefault(topic, Counter())[name] += count
    return found
