"""No setting that clients can change makes a node read a file, ask an address or run anything."""

from __future__ import annotations

import re

import pytest
from tidelog_core.admin.settings.configs import validate_node_configs
from tidelog_core.config import GroupConfig, NodeConfig, TopicConfig, settings_of
from tidelog_core.errors import InvalidRequest
from tidelog_core.setting import Setting

CHANGEABLE = [
    setting
    for config_class in (TopicConfig, GroupConfig, NodeConfig)
    for setting in settings_of(config_class).values()
    if not setting.is_read_only
]
NODE_SETTINGS = settings_of(NodeConfig)
FIXED = [setting for setting in NODE_SETTINGS.values() if setting.is_read_only]
OUTSIDE = (
    "/etc/passwd",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "https://127.0.0.1/keys",
    "${file:/etc/passwd:root}",
    "${env:HOME}",
    "$HOME",
    "$(id)",
    "`id`",
    "java.lang.Runtime",
    "com.sun.security.auth.module.JndiLoginModule required;",
)
CODE = re.compile(r"\b(class|command|script|module|handler|provider|jaas|reporters?|plugin)s?\b")


@pytest.mark.parametrize("setting", CHANGEABLE, ids=lambda setting: setting.name)
def test_a_setting_that_clients_change_takes_no_reference_to_anything_outside(
    setting: Setting,
) -> None:
    """CVE-2024-31141: settings were replaced by what files and the environment have."""
    for text in OUTSIDE:
        with pytest.raises(ValueError, match=r"must be|boolean|number"):
            setting.parse(text)


@pytest.mark.parametrize("setting", FIXED, ids=lambda setting: setting.name)
def test_a_setting_of_the_start_stays_as_it_is(setting: Setting) -> None:
    """CVE-2025-27817: clients could have brokers fetch any URL and read any file."""
    with pytest.raises(InvalidRequest, match="Cannot update these configs dynamically"):
        validate_node_configs({setting.name: setting.format(setting.default)})


def test_no_setting_names_code_to_run() -> None:
    """CVE-2023-25194, CVE-2025-27818 and CVE-2025-27819: login modules by configuration."""
    named = {name: setting for name, setting in NODE_SETTINGS.items() if CODE.search(name)}
    assert named.keys() == {"authorizer.class.name"}
    authorizer = named["authorizer.class.name"]
    assert authorizer.parse("tidelog.acl") == "tidelog.acl"
    for text in OUTSIDE:
        with pytest.raises(ValueError, match="must be"):
            authorizer.parse(text)
    assert not [one.name for one in CHANGEABLE if CODE.search(one.name)]
