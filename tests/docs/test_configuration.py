"""``docs/configuration.md`` is what the declared settings say, and they say enough."""

from __future__ import annotations

import pytest
from tidelog_core.config import (
    ClientMetricsConfig,
    GroupConfig,
    NodeConfig,
    TopicConfig,
    settings_of,
)
from tidelog_core.setting import Setting

from tools.configuration import NODE_SECTIONS, PAGE, configuration_page

SETTINGS = [
    setting
    for config_class in (TopicConfig, GroupConfig, ClientMetricsConfig, NodeConfig)
    for setting in settings_of(config_class).values()
]


def test_the_page_is_up_to_date() -> None:
    """If not: ``make docs``."""
    assert PAGE.read_text() == configuration_page()


def test_the_page_has_every_setting_once() -> None:
    rows = [line.split("`")[1] for line in configuration_page().splitlines() if line[:3] == "| `"]
    assert sorted(rows) == sorted(setting.name for setting in SETTINGS)


def test_a_setting_of_nodes_is_in_one_section() -> None:
    for name, setting in settings_of(NodeConfig).items():
        found = [title for title, names in NODE_SECTIONS.items() if name.startswith(names)]
        assert setting.default_of or len(found) == 1, (name, found)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_says_what_it_does_in_which_unit_and_bounds(setting: Setting) -> None:
    assert setting.doc.endswith(".")
    assert "|" not in setting.doc
    if setting.type in ("int", "long", "double"):
        has_no_unit = (".level", ".ratio")
        assert setting.unit or setting.name.endswith(has_no_unit)
        assert setting.one_of or setting.at_least is not None
    setting.parse(setting.format(setting.default))
