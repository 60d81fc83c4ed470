"""``tidelog diff`` and ``tidelog apply``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tidelog_cli.administration.topic_plan import (
    DeclaredTopic,
    LiveTopic,
    parse_topics,
    plan,
    read_topics,
)
from tidelog_cli.failures import UsageError

from tests.support.command import called

FILE = """
[topics.declared-a]
partitions = 2
[topics.declared-a.configs]
"retention.ms" = 86_400_000
segment.bytes = 1048576
"remote.storage.enable" = false

[topics.declared-b]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "topics.toml"
    path.write_text(text)
    return path


def test_cluster_becomes_as_the_file_says_and_stays_so(bootstrap: str, tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    outcome = called("diff", "-f", path, bootstrap=bootstrap, status=1)
    assert outcome.lines == [
        "+ topic declared-a, partitions 2",
        "+   remote.storage.enable=false",
        "+   retention.ms=86400000",
        "+   segment.bytes=1048576",
        "+ topic declared-b, partitions default",
    ]
    assert called("apply", "-f", path, bootstrap=bootstrap).errors == "tidelog: 2 topics changed\n"
    assert called("diff", "-f", path, bootstrap=bootstrap).lines == ["no differences"]
    again = called("apply", "-f", path, bootstrap=bootstrap)
    assert (again.out, again.errors) == (b"", "tidelog: nothing to change\n")
    called("config", "set", "topic", "declared-a", "segment.ms=60000", bootstrap=bootstrap)
    changed = FILE.replace("partitions = 2", "partitions = 3").replace("86_400_000", "1000")
    outcome = called("apply", "-f", write(tmp_path, changed), bootstrap=bootstrap)
    assert outcome.lines == [
        "~ topic declared-a",
        "~   partitions 2 -> 3",
        "~   retention.ms=1000 (was 86400000)",
        "-   segment.ms=60000",
    ]
    (found,) = called("topic", "describe", "declared-a", "--json", bootstrap=bootstrap).document
    assert len(found["partitions"]) == 3
    assert found["configs"]["retention.ms"] == "1000"
    assert "segment.ms" not in found["configs"]


def test_nothing_is_changed_if_one_part_is_impossible(bootstrap: str, tmp_path: Path) -> None:
    called("topic", "create", "shrinking", "--partitions", 3, bootstrap=bootstrap)
    path = write(tmp_path, "[topics.shrinking]\npartitions = 2\n[topics.not-made]\n")
    outcome = called("apply", "-f", path, bootstrap=bootstrap, status=1)
    assert "nothing was changed: topic shrinking has 3 partitions" in outcome.errors
    path = write(tmp_path, "[topics.not-made]\n[topics.too-many]\nreplication_factor = 5\n")
    called("apply", "-f", path, bootstrap=bootstrap, status=1)
    assert "not-made" not in called("topic", "list", bootstrap=bootstrap).out.decode()
    document = called("diff", "-f", path, "--json", bootstrap=bootstrap, status=1).document
    assert [change["change"] for change in document["changes"]] == ["create", "create"]


def test_topics_that_are_not_declared_are_deleted_if_wanted() -> None:
    live = {name: LiveTopic(name, 1, 1, {}) for name in ("a", "b")}
    declared = {"a": DeclaredTopic("a", 1, 1)}
    assert plan(declared, live, prunes=False) == ([], [])
    changes, problems = plan(declared, live, prunes=True)
    assert [(change.name, change.is_deleted) for change in changes] == [("b", True)]
    assert problems == []
    _, problems = plan({"a": DeclaredTopic("a", 1, 3)}, live, prunes=False)
    assert problems == [
        "topic a has replication factor 1, not 3: `tidelog topic reassign` changes it"
    ]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "one table, 'topics'"),
        ({"topics": {}, "other": {}}, "one table, 'topics'"),
        ({"topics": {"a": 1}}, "topic 'a' must be a table"),
        ({"topics": {"a/b": {}}}, "a/b"),
        ({"topics": {"a": {"partition": 1}}}, "unknown field 'partition'"),
        ({"topics": {"a": {"partitions": 0}}}, "partitions must be a number of 1 or more"),
        ({"topics": {"a": {"partitions": True}}}, "partitions must be"),
        ({"topics": {"a": {"configs": []}}}, "configs must be a table"),
        ({"topics": {"a": {"configs": {"retentionms": 1}}}}, "no setting 'retentionms'"),
        ({"topics": {"a": {"configs": {"retention.ms": "soon"}}}}, "whole number"),
    ],
)
def test_wrong_file_is_named(document: Any, said: str) -> None:
    with pytest.raises(UsageError) as failure:
        parse_topics(document, "topics.json")
    assert said in str(failure.value)


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text(json.dumps({"topics": {"a": {"x": 1, "partitions": -1}, "b": {"y": 2}}}))
    with pytest.raises(UsageError) as failure:
        read_topics(path)
    assert all(word in str(failure.value) for word in ("'x'", "partitions", "'y'"))
    for name, text in (("t.toml", "[topics"), ("t.json", "{"), ("t.yaml", "topics: {}")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=name):
            read_topics(tmp_path / name)
