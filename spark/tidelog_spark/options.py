"""The options of a read, parsed once; every problem is reported together.

Names and meanings are those of Spark's Kafka source, and like there a name counts in
any case. Where several options say where to start, ``startingTimestamp`` goes before
``startingOffsetsByTimestamp``, and that before ``startingOffsets``; the same at the end.
Source: Spark's Kafka integration guide.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog_core.config import INT32_MAX, INT64_MAX, parse_bool
from tidelog_core.errors import InvalidConfig
from tidelog_core.model import TopicPartition

T = TypeVar("T")

EARLIEST = -2
LATEST = -1

OPTION_NAMES = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "isolation",
    "metadata",
    "minPartitions",
    "objects",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
# Known from Spark's Kafka source, without a meaning here: why.
_NOT_HERE = {
    "maxoffsetspertrigger": "is for streaming reads",
    "minoffsetspertrigger": "is for streaming reads",
    "maxtriggerdelay": "is for streaming reads",
    "path": "is not read: name the stores with 'metadata' and 'objects', topics with 'subscribe'",
}
_NAME_BY_LOWER_CASE = {name.lower(): name for name in OPTION_NAMES}


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics. Each must exist."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches, internal ones left out."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Just these partitions. Each must exist."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """An offset, ``EARLIEST`` or ``LATEST``: one for all partitions, or one for each."""

    everywhere: int | None
    by_partition: Mapping[TopicPartition, int]  # of all partitions, where everywhere is None


@dataclass(frozen=True, slots=True)
class TimestampLimit:
    """The first record of at least a time: one time for all partitions, or one for each."""

    everywhere: int | None  # milliseconds, Unix time
    by_partition: Mapping[TopicPartition, int]


Limit = OffsetLimit | TimestampLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What one read was asked for."""

    metadata: str  # url of the metadata store
    objects: str  # url of the object store
    selection: Selection
    start: Limit
    end: Limit
    # A start that no record is new enough for: an error, or the end of the tiered log.
    is_late_start_latest: bool = False
    min_partitions: int = 0  # 0: as many as the bytes call for
    include_headers: bool = False
    fail_on_data_loss: bool = True
    is_read_committed: bool = False


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read. Raises ``InvalidConfig`` with every problem at once."""
    reader = _OptionReader(given)
    reader.report_unknown()
    options = ReadOptions(
        metadata=reader.required("metadata", "sqlite:///path or dynamodb://table"),
        objects=reader.required("objects", "file:///path or s3://bucket/prefix"),
        selection=_selection(reader),
        start=_limit(reader, "starting", default=EARLIEST),
        end=_limit(reader, "ending", default=LATEST),
        is_late_start_latest=reader.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, default=False
        ),
        min_partitions=reader.parsed("minPartitions", _positive, default=0),
        include_headers=reader.parsed("includeHeaders", parse_bool, default=False),
        fail_on_data_loss=reader.parsed("failOnDataLoss", parse_bool, default=True),
        is_read_committed=reader.choice(
            "isolation", {"read_uncommitted": False, "read_committed": True}, default=False
        ),
    )
    reader.problems += _backwards(options)
    if reader.problems:
        raise InvalidConfig(reader.problems)
    return options


class _OptionReader:
    """Hands out options by name and gathers what is wrong with them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        self._given = {name.lower(): (name, str(text)) for name, text in given.items()}

    def report_unknown(self) -> None:
        for lower, (name, _) in sorted(self._given.items()):
            if lower in _NAME_BY_LOWER_CASE:
                continue
            if lower in _NOT_HERE:
                self.problems.append(f"option {name!r} {_NOT_HERE[lower]}")
            elif lower.startswith("kafka."):
                self.problems.append(
                    f"option {name!r} is for a Kafka client: this reads the stores"
                    " that 'metadata' and 'objects' name, without a broker"
                )
            else:
                self.problems.append(f"unknown option {name!r}: {_nearest(lower)}")

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str) -> str:
        return self._given[name.lower()][1].strip()

    def required(self, name: str, example: str) -> str:
        if self.has(name) and self.text(name):
            return self.text(name)
        self.problems.append(f"option {name!r} is missing: give a url like {example}")
        return ""

    def parsed(self, name: str, parse: Callable[[str], T], *, default: T) -> T:
        if not self.has(name):
            return default
        try:
            return parse(self.text(name))
        except ValueError as error:
            self.problems.append(f"option {name!r} is {self.text(name)!r}: it {error}")
            return default

    def choice(self, name: str, choices: Mapping[str, T], *, default: T) -> T:
        def parse(text: str) -> T:
            if text.lower() not in choices:
                raise ValueError(f"must be one of {', '.join(choices)}")
            return choices[text.lower()]

        return self.parsed(name, parse, default=default)


def _nearest(lower: str) -> str:
    near = difflib.get_close_matches(lower, _NAME_BY_LOWER_CASE, n=1, cutoff=0.5)
    if near:
        return f"did you mean {_NAME_BY_LOWER_CASE[near[0]]!r}?"
    return f"the options are {', '.join(OPTION_NAMES)}"


def _selection(reader: _OptionReader) -> Selection:
    parsers: dict[str, Callable[[str], Selection]] = {
        "assign": _assign,
        "subscribe": _subscribe,
        "subscribePattern": _pattern,
    }
    nothing: Selection = Subscribe(())
    # Several are parsed all the same, so that everything wrong is said at once.
    found = [
        reader.parsed(name, parse, default=nothing)
        for name, parse in parsers.items()
        if reader.has(name)
    ]
    if len(found) != 1:
        how_many = "only one" if found else "one"
        names = ", ".join(map(repr, parsers))
        reader.problems.append(f"give {how_many} of the options {names}")
        return nothing
    return found[0]


def _backwards(options: ReadOptions) -> list[str]:
    """Return what ends before it starts, as far as the options alone tell."""
    start, end = options.start, options.end
    if type(start) is not type(end):
        return []
    if start.everywhere is not None and end.everywhere is not None:
        if isinstance(start, TimestampLimit) and start.everywhere > end.everywhere:
            return [f"the read ends at time {end.everywhere} and starts at {start.everywhere}"]
        return []
    return [
        f"the read of {partition} ends at {end.by_partition[partition]}"
        f" and starts at {start.by_partition[partition]}"
        for partition in sorted(start.by_partition.keys() & end.by_partition.keys())
        if 0 <= end.by_partition[partition] < start.by_partition[partition]
    ]


def _limit(reader: _OptionReader, side: str, *, default: int) -> Limit:
    fallback: Limit = OffsetLimit(default, {})
    by_offset = reader.parsed(f"{side}Offsets", _offsets_parser(side), default=fallback)
    by_times = reader.parsed(f"{side}OffsetsByTimestamp", _timestamps, default=fallback)
    by_time = reader.parsed(f"{side}Timestamp", _timestamp, default=fallback)
    if reader.has(f"{side}Timestamp"):
        return by_time
    return by_times if reader.has(f"{side}OffsetsByTimestamp") else by_offset


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= INT32_MAX:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _subscribe(text: str) -> Selection:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ValueError("must name topics, separated by commas")
    return Subscribe(topics)


def _pattern(text: str) -> Selection:
    if not text:
        raise ValueError("must be a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return SubscribePattern(text)


def _assign(text: str) -> Selection:
    shape = 'must be JSON like {"topic": [0, 1]}'
    partitions: list[TopicPartition] = []
    for topic, numbers in _json_object(text, shape).items():
        if not isinstance(numbers, list) or not all(_is_natural(number) for number in numbers):
            raise ValueError(shape)
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise ValueError("must name at least one partition")
    return Assign(tuple(sorted(set(partitions))))


def _offsets_parser(side: str) -> Callable[[str], Limit]:
    word, number = ("earliest", EARLIEST) if side == "starting" else ("latest", LATEST)
    wrong = LATEST if side == "starting" else EARLIEST

    def parse(text: str) -> Limit:
        if text.lower() == word:
            return OffsetLimit(number, {})
        shape = f'must be {word!r} or JSON like {{"topic": {{"0": 23, "1": {number}}}}}'
        if text.lower() in ("earliest", "latest"):
            raise ValueError(f"{shape} in a batch read")
        offsets = _by_partition(text, shape)
        for partition, offset in offsets.items():
            if offset == wrong:
                raise ValueError(f"must not have {wrong} for {partition} in a batch read")
            if offset < number:
                raise ValueError(f"must not have {offset} for {partition}")
        return OffsetLimit(None, offsets)

    return parse


def _timestamp(text: str) -> Limit:
    if not text.isdecimal() or int(text) > INT64_MAX:
        raise ValueError("must be a time in milliseconds since 1970, not negative")
    return TimestampLimit(int(text), {})


def _timestamps(text: str) -> Limit:
    shape = 'must be JSON like {"topic": {"0": 1700000000000}}, milliseconds since 1970'
    times = _by_partition(text, shape)
    if any(time < 0 for time in times.values()):
        raise ValueError(shape)
    return TimestampLimit(None, times)


def _by_partition(text: str, shape: str) -> dict[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for topic, by_partition in _json_object(text, shape).items():
        if not isinstance(by_partition, dict):
            raise ValueError(shape)
        for partition, number in by_partition.items():
            if not partition.isdecimal() or isinstance(number, bool):
                raise ValueError(shape)
            if not isinstance(number, int) or not -INT64_MAX <= number <= INT64_MAX:
                raise ValueError(shape)
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _json_object(text: str, shape: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except ValueError:
        raise ValueError(shape) from None
    if not isinstance(parsed, dict):
        raise ValueError(shape)
    return parsed


def _is_natural(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= INT32_MAX
