"""Parsers of option values.

Each raises ``ValueError`` naming the expected form.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.errors import InvalidConfig
from tidelog_core.model import INT32_MAX, INT64_MAX, TopicPartition

from tidelog_spark.options.positions import Positions

EARLIEST = -2
LATEST = -1
KEYS_MAX = 10_000

_MS_BY_UNIT = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, which must exist."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches, except internal ones."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Exactly these partitions, which must exist."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True, slots=True)
class OffsetLimit:
    """An offset, ``EARLIEST`` or ``LATEST``: one for all partitions, or one for each."""

    everywhere: int | None
    by_partition: Mapping[TopicPartition, int]  # of all partitions, if everywhere is None
    # The ids that the topics must have, if the limit contains them.
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TimestampLimit:
    """The first record at or after a time: one time for all partitions, or one for each."""

    everywhere: int | None  # milliseconds, Unix time
    by_partition: Mapping[TopicPartition, int]


Limit = OffsetLimit | TimestampLimit


def parse_subscribe(text: str) -> Selection:
    """Parse topics like ``a, b``."""
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ValueError("must name topics, separated by commas")
    return Subscribe(topics)


def parse_pattern(text: str) -> Selection:
    """Parse a regular expression of Python's ``re``."""
    if not text:
        raise ValueError("must be a regular expression")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return SubscribePattern(text)


def parse_assign(text: str) -> Selection:
    """Parse partitions like ``{"topic": [0, 1]}``."""
    shape = 'must be JSON like {"topic": [0, 1]}'
    partitions: list[TopicPartition] = []
    for topic, numbers in json_object(text, shape).items():
        if not isinstance(numbers, list) or not all(_is_natural(number) for number in numbers):
            raise ValueError(shape)
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise ValueError("must name at least one partition")
    return Assign(tuple(sorted(set(partitions))))


def offsets_parser(side: str, *, is_stream: bool) -> Callable[[str], Limit]:
    """Return the parser of ``startingOffsets`` (side ``starting``) or ``endingOffsets``."""
    own = {"earliest": EARLIEST} if side == "starting" else {"latest": LATEST}
    words = {"earliest": EARLIEST, "latest": LATEST} if is_stream else own
    shape = (
        f"must be {' or '.join(map(repr, words))} or JSON like"
        f' {{"topic": {{"0": 23, "1": {max(words.values())}}}}}'
    )

    def parse(text: str) -> Limit:
        if text.lower() in words:
            return OffsetLimit(words[text.lower()], {})
        if text.lower() in ("earliest", "latest"):
            raise ValueError(f"{shape} in a batch read")
        positions = _positions(text, shape)
        for partition, offset in positions.offsets.items():
            if offset in (EARLIEST, LATEST) and offset not in words.values():
                raise ValueError(f"must not have {offset} for {partition} in a batch read")
            if offset < EARLIEST:
                raise ValueError(f"must not have {offset} for {partition}")
        return OffsetLimit(None, positions.offsets, positions.topic_ids)

    return parse


def parse_timestamp(text: str) -> Limit:
    """Return one time for all partitions."""
    if not text.isdecimal() or int(text) > INT64_MAX:
        raise ValueError("must be a time in milliseconds since 1970, not negative")
    return TimestampLimit(int(text), {})


def parse_timestamps(text: str) -> Limit:
    """Return a time for each partition."""
    shape = 'must be JSON like {"topic": {"0": 1700000000000}}, milliseconds since 1970'
    times = _positions(text, shape).offsets
    if any(time < 0 for time in times.values()):
        raise ValueError(shape)
    return TimestampLimit(None, times)


def parse_positive(text: str) -> int:
    """Parse a positive whole number within Spark's ``int``."""
    if not text.isdecimal() or not 0 < int(text) <= INT32_MAX:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def parse_row_count(text: str) -> int:
    """Parse a positive whole number of 64 bits."""
    if not text.isdecimal() or not 0 < int(text) <= INT64_MAX:
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def parse_duration_ms(text: str) -> int:
    """Parse ``500ms``, ``30s``, ``15m``, ``2h`` or ``1d`` into milliseconds."""
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _MS_BY_UNIT:
        raise ValueError("must be a time like 500ms, 30s, 15m or 2h")
    return int(match[1]) * _MS_BY_UNIT[match[2]]


def parse_servers(text: str) -> str:
    """Check ``host:port,host:port`` and return it unchanged."""
    # Imported late: the client's message classes take half a second to load.
    from tidelog.options import parse_bootstrap

    try:
        parse_bootstrap(text)
    except InvalidConfig as error:
        raise ValueError(f"must be host:port,host:port: {error}") from None
    return text


def parse_keys(text: str) -> tuple[str, ...]:
    """Parse a JSON list of texts."""
    shape = f'must be a JSON list like ["a", "b"] of at most {KEYS_MAX} keys'
    try:
        keys = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(shape) from None
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError(shape)
    if not 0 < len(keys) <= KEYS_MAX:
        raise ValueError(shape)
    return tuple(dict.fromkeys(keys))


def decode_utf8(text: str) -> bytes:
    """Return the bytes of a text key."""
    return text.encode()


def decode_hex(text: str) -> bytes:
    """Return the bytes of a hexadecimal key."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"has {text!r}, which is not hexadecimal") from None


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 key."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"has {text!r}, which is not base64") from None


def json_object(text: str, shape: str) -> dict[str, object]:
    """Return the JSON object, or raise ``ValueError(shape)``, or one that names a repeated key."""
    repeated: list[str] = []

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(name for name, _ in pairs)
        repeated.extend(name for name, count in counts.items() if count > 1)
        return dict(pairs)

    try:
        parsed = json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError):
        raise ValueError(shape) from None
    if repeated:
        raise ValueError(f"names {repeated[0]!r} twice, and only one of its values would count")
    if not isinstance(parsed, dict):
        raise ValueError(shape)
    return parsed


def _positions(text: str, shape: str) -> Positions:
    parsed = json_object(text, shape)
    try:
        return Positions.from_json(parsed)
    except ValueError:
        raise ValueError(shape) from None


def _is_natural(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= INT32_MAX
