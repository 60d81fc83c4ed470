"""The entries of answers: where each API has them, and what names them.

A request asks for things by name, and its answer has an entry for each. One that is left out would
look like one without an error, so it is an error too: ``EntryNotAnswered``. Entries that the
request did not ask for are ignored, as by Kafka's admin client. Of several entries with one name,
one with an error counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.errors import EntryNotAnswered
from tidelog.wire import requests
from tidelog.wire.requests import Api

NameT = TypeVar("NameT", bound=Hashable)

# After so many answers that lack entries, a request that may be repeated fails. The first one may
# come from a former leader or coordinator; the node that is looked up after it is the current one.
LACKING_ANSWERS_MAX = 2

_Level = tuple[str, str | Callable[[Any], Hashable]]
"""A list in an answer or entry, and the field that names each of its entries."""

_PARTITIONS: _Level = ("partitions", "partition_index")
_TOPICS: tuple[_Level, ...] = (("topics", "name"), _PARTITIONS)


def _quota_entity(entry: Any) -> Hashable:
    from tidelog.wire.quota_entities import answered_entity  # Few programs have quotas.

    return answered_entity({part.entity_type: part.entity_name for part in entry.entity})


# The name of an entry within several lists is a tuple: that of each list's entry in turn.
_ENTRIES: Mapping[Api, tuple[_Level, ...]] = {
    requests.METADATA: (("topics", "name"),),
    requests.CREATE_TOPICS: (("topics", "name"),),
    requests.DELETE_TOPICS: (("responses", "name"),),
    requests.CREATE_PARTITIONS: (("results", "name"),),
    requests.DELETE_RECORDS: _TOPICS,
    requests.DESCRIBE_CONFIGS: (("results", "resource_name"),),
    requests.INCREMENTAL_ALTER_CONFIGS: (("responses", "resource_name"),),
    requests.ALTER_PARTITION_REASSIGNMENTS: (("responses", "name"), _PARTITIONS),
    requests.ELECT_LEADERS: (
        ("replica_election_results", "topic"),
        ("partition_result", "partition_id"),
    ),
    requests.FIND_COORDINATOR: (("coordinators", "key"),),
    requests.OFFSET_COMMIT: _TOPICS,
    requests.OFFSET_FETCH: (("groups", "group_id"), *_TOPICS),
    requests.OFFSET_DELETE: _TOPICS,
    requests.DESCRIBE_GROUPS: (("groups", "group_id"),),
    requests.CONSUMER_GROUP_DESCRIBE: (("groups", "group_id"),),
    requests.SHARE_GROUP_DESCRIBE: (("groups", "group_id"),),
    requests.DELETE_GROUPS: (("results", "group_id"),),
    requests.DESCRIBE_SHARE_GROUP_OFFSETS: (
        ("groups", "group_id"),
        ("topics", "topic_name"),
        _PARTITIONS,
    ),
    requests.ALTER_SHARE_GROUP_OFFSETS: (("responses", "topic_name"), _PARTITIONS),
    requests.DELETE_SHARE_GROUP_OFFSETS: (("responses", "topic_name"),),
    requests.DESCRIBE_TRANSACTIONS: (("transaction_states", "transactional_id"),),
    requests.DESCRIBE_PRODUCERS: _TOPICS,
    requests.WRITE_TXN_MARKERS: (("markers", "producer_id"), *_TOPICS),
    requests.ADD_PARTITIONS_TO_TXN: (
        ("results_by_topic_v3_and_below", "name"),
        ("results_by_partition", "partition_index"),
    ),
    requests.TXN_OFFSET_COMMIT: _TOPICS,
    requests.TXN_OFFSET_COMMIT_TO_ADDED: _TOPICS,
    requests.DESCRIBE_USER_SCRAM_CREDENTIALS: (("results", "user"),),
    requests.ALTER_USER_SCRAM_CREDENTIALS: (("results", "user"),),
    requests.ALTER_CLIENT_QUOTAS: (("entries", _quota_entity),),
    requests.ALTER_ROLES: (("results", "name"),),
}
# Lists whose entries have no name: they are in the order of the request.
_IN_ORDER: Mapping[Api, str] = {
    requests.CREATE_ACLS: "results",
    requests.DELETE_ACLS: "filter_results",
}


def find_entries(
    api: Api, answer: Any, asked: Iterable[NameT], *, depth: int | None = None
) -> dict[NameT, Any]:
    """Return the entry of each name that was asked for, ``None`` where the answer has none.

    ``depth`` is the number of lists to go into, from the outermost on; all by default.
    """
    if api in _IN_ORDER:
        names = list(dict.fromkeys(asked))
        entries = [*getattr(answer, _IN_ORDER[api]), *([None] * len(names))]
        return dict(zip(names, entries, strict=False))
    return _found(answer, _ENTRIES[api][:depth], asked)


def find_within(api: Api, entry: Any, asked: Iterable[NameT]) -> dict[NameT, Any]:
    """As ``find_entries``, in the lists of an entry of the outermost list."""
    return _found(entry, _ENTRIES[api][1:], asked)


def entries_of(
    api: Api, answer: Any, asked: Iterable[NameT], *, about: str, depth: int | None = None
) -> dict[NameT, Any]:
    """As ``find_entries``. Raises ``EntryNotAnswered`` for an entry that the answer lacks."""
    found = find_entries(api, answer, asked, depth=depth)
    check_answered(found, (name for name in found if found[name] is not None), about=about)
    return found


def check_answered(asked: Iterable[object], answered: Iterable[object], *, about: str) -> None:
    """Raise ``EntryNotAnswered`` unless all that was asked is answered."""
    error = incompleteness(asked, answered, about=about)
    if error is not None:
        raise error


def incompleteness(
    asked: Iterable[object], answered: Iterable[object], *, about: str
) -> EntryNotAnswered | None:
    """Return the error of an answer that lacks some of what was asked, ``None`` if it has all."""
    missing = set(asked).difference(answered)
    return EntryNotAnswered(missing, about=about) if missing else None


def _found(parent: Any, levels: tuple[_Level, ...], asked: Iterable[NameT]) -> dict[NameT, Any]:
    found: dict[Hashable, Any] = {}
    for path, entry in _walk(parent, levels):
        name = path if len(path) > 1 else path[0]
        if name not in found or _has_error(entry):
            found[name] = entry
    return {name: found.get(name) for name in asked}


def _walk(parent: Any, levels: tuple[_Level, ...]) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    (field, naming), *inner = levels
    for entry in getattr(parent, field) or ():
        name = getattr(entry, naming) if isinstance(naming, str) else naming(entry)
        if not inner:
            yield (name,), entry
        else:
            for path, found in _walk(entry, tuple(inner)):
                yield (name, *path), found


def _has_error(entry: Any) -> bool:
    return getattr(entry, "error_code", ErrorCode.none) is not ErrorCode.none
