"""Declared topics: reads a file of them, and plans the changes that make a cluster match.

    [topics.orders]
    partitions = 12                # the cluster's default if it is left out
    replication_factor = 3         # for new topics

    [topics.orders.configs]        # all that are set: others are reset to their default
    "retention.ms" = 86_400_000

The same in JSON: ``{"topics": {"orders": {"partitions": 12, …}}}``. Plain decisions of values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog_cli.failures import UsageError

FILE_BYTES_MAX = 16 * 1024 * 1024
_FIELDS = frozenset({"partitions", "replication_factor", "configs"})


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic as a file has it. None: what the cluster chooses, or has."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the cluster has it; ``configs`` are those that were set for it."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What to do with one topic."""

    name: str
    create: DeclaredTopic | None = None
    is_deleted: bool = False
    partitions: int | None = None  # the new, higher number
    set_configs: Mapping[str, str] = field(default_factory=dict)
    reset_configs: Sequence[str] = ()
    lines: Sequence[str] = ()  # for people


def read_topics(path: Path) -> dict[str, DeclaredTopic]:
    """Return the topics of a TOML or JSON file. Raises ``UsageError`` with every problem."""
    if path.stat().st_size > FILE_BYTES_MAX:
        raise UsageError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return parse_topics(_parse(path), str(path))


def parse_topics(document: object, place: str) -> dict[str, DeclaredTopic]:
    """Return the topics of a parsed file. Raises ``UsageError`` with every problem."""
    topics = document.get("topics") if isinstance(document, dict) else None
    if not isinstance(topics, dict) or len(document) != 1:  # type: ignore[arg-type]
        raise UsageError(f"{place} must have one table, 'topics', with a table for each topic")
    problems: list[str] = []
    found = {name: _topic(name, given, problems) for name, given in topics.items()}
    if problems:
        raise UsageError(f"{place}: {'; '.join(problems)}")
    return found


def plan(
    declared: Mapping[str, DeclaredTopic], live: Mapping[str, LiveTopic], *, prunes: bool
) -> tuple[list[TopicChange], list[str]]:
    """Return the changes, and the problems that no change can solve.

    ``prunes``: topics that are not declared are deleted.
    """
    changes: list[TopicChange] = []
    problems: list[str] = []
    for name, topic in sorted(declared.items()):
        now = live.get(name)
        change = _creation(topic) if now is None else _alteration(topic, now, problems)
        if change is not None:
            changes.append(change)
    if prunes:
        changes += [
            TopicChange(name, is_deleted=True, lines=(f"- topic {name}",))
            for name in sorted(live.keys() - declared.keys())
        ]
    return changes, problems


def _creation(topic: DeclaredTopic) -> TopicChange:
    partitions = "default" if topic.partitions is None else topic.partitions
    lines = [f"+ topic {topic.name}, partitions {partitions}"]
    lines += [f"+   {name}={value}" for name, value in sorted(topic.configs.items())]
    return TopicChange(topic.name, create=topic, lines=lines)


def _alteration(topic: DeclaredTopic, live: LiveTopic, problems: list[str]) -> TopicChange | None:
    lines: list[str] = []
    partitions = None
    if topic.partitions is not None and topic.partitions != live.partitions:
        if topic.partitions < live.partitions:
            problems.append(
                f"topic {topic.name} has {live.partitions} partitions, and partitions cannot be "
                f"taken away ({topic.partitions} are declared)"
            )
        else:
            partitions = topic.partitions
            lines.append(f"~   partitions {live.partitions} -> {partitions}")
    wanted_factor = topic.replication_factor
    if wanted_factor is not None and wanted_factor != live.replication_factor:
        problems.append(
            f"topic {topic.name} has replication factor {live.replication_factor}, not "
            f"{wanted_factor}: `tidelog topic reassign` changes it"
        )
    changed = {n: v for n, v in sorted(topic.configs.items()) if live.configs.get(n) != v}
    reset = sorted(live.configs.keys() - topic.configs.keys())
    for name, value in changed.items():
        before = f" (was {live.configs[name]})" if name in live.configs else ""
        lines.append(f"{'~' if before else '+'}   {name}={value}{before}")
    lines += [f"-   {name}={live.configs[name]}" for name in reset]
    if not lines:
        return None
    return TopicChange(
        topic.name,
        partitions=partitions,
        set_configs=changed,
        reset_configs=reset,
        lines=(f"~ topic {topic.name}", *lines),
    )


def _parse(path: Path) -> object:
    import tomllib

    try:
        match path.suffix.lower():
            case ".toml":
                return tomllib.loads(path.read_text())
            case ".json":
                return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from None
    raise UsageError(f"{path} must be a .toml or .json file")


def _topic(name: str, given: object, problems: list[str]) -> DeclaredTopic:
    from tidelog_core.admin.names import validate_topic_name
    from tidelog_core.errors import InvalidTopic

    where = f"topic {name!r}"
    try:
        validate_topic_name(name)
    except InvalidTopic as error:
        problems.append(str(error))
    if not isinstance(given, dict):
        problems.append(f"{where} must be a table")
        return DeclaredTopic(name)
    problems += [
        f"{where} has an unknown field {one!r}; allowed are {', '.join(sorted(_FIELDS))}"
        for one in sorted(given.keys() - _FIELDS)
    ]
    return DeclaredTopic(
        name,
        _count(where, given, "partitions", problems),
        _count(where, given, "replication_factor", problems),
        _configs(where, given.get("configs", {}), problems),
    )


def _count(where: str, given: dict[str, Any], name: str, problems: list[str]) -> int | None:
    value = given.get(name)
    if value is not None and (type(value) is not int or value < 1):
        problems.append(f"{where}: {name} must be a number of 1 or more, is {value!r}")
        return None
    return value


def _configs(where: str, given: object, problems: list[str]) -> dict[str, str]:
    from tidelog_core.config import TopicConfig, settings_of

    if not isinstance(given, dict):
        problems.append(f"{where}: configs must be a table")
        return {}
    known = settings_of(TopicConfig)
    found: dict[str, str] = {}
    for name, value in _flat(given).items():
        setting = known.get(name)
        if setting is None:
            problems.append(f"{where}: there is no setting {name!r}")
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(value, bool):
            text = text.lower()
        try:
            found[name] = setting.format(setting.parse(text))
        except ValueError as error:
            problems.append(f"{where}: {name}={text}: {error}")
    return found


def _flat(given: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return the settings of tables too: in TOML, ``retention.ms = 1`` is a table."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found
