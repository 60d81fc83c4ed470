"""What errors say to do next: it can be done, and the command says it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

import pytest
from tidelog.errors import ConnectionFailed
from tidelog.settings.names import NAMED
from tidelog_core.config import NodeConfig, TopicConfig, settings_of
from tidelog_core.errors import StorageError, TidelogError
from tidelog_core.tier_compaction.swap import PartitionClaimed
from tidelog_node.membership.registration import BrokerIdTaken

from tests.support.command import called
from tests.support.source_texts import PACKAGES
from tools.places import ROOT


def classes_below(cls: type[TidelogError]) -> Iterator[type[TidelogError]]:
    """Yield the class and all that were derived from it."""
    yield cls
    for below in cls.__subclasses__():
        yield from classes_below(below)


def import_hints() -> None:
    """Import the modules whose errors have hints: other tests may not have imported them."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if re.search(r"^ +hint\b.* = ", path.read_text(), flags=re.MULTILINE):
                import_module(".".join(path.relative_to(ROOT / package).with_suffix("").parts))


import_hints()
HINTS = sorted({cls.hint for cls in classes_below(TidelogError) if cls.hint})
KEYS = settings_of(NodeConfig).keys() | settings_of(TopicConfig).keys() | NAMED.keys()


def test_hints_of_every_layer_are_there() -> None:
    for cls in (ConnectionFailed, StorageError, PartitionClaimed, BrokerIdTaken):
        assert cls.hint in HINTS


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_is_the_end_of_a_sentence_and_names_what_there_is(hint: str) -> None:
    assert "\n" not in hint
    assert not hint.endswith(".")
    assert hint[0].islower() or hint[0] == "`"
    for line in re.findall(r"`tidelog ([^`]+)`", hint):
        command = line.partition(" --")[0]
        assert f"Usage: tidelog {command} " in called(*command.split(), "--help").out.decode()
    for page in re.findall(r"docs/[a-z_-]+[.]md", hint):
        assert (ROOT / page).is_file()
    for name in re.findall(r"\b[a-z]+(?:[.][a-z]+)+\b", re.sub(r"docs/\S+", "", hint)):
        assert name in KEYS
