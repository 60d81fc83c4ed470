"""The settings that say whether, and for whom, ACLs count."""

from __future__ import annotations

import pytest
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.errors import InvalidConfig
from tidelog_core.setting_values.authorizer import ACL_AUTHORIZERS, parse_super_users


def test_super_users_are_parsed() -> None:
    assert parse_super_users(" User:alice ;User:CN=bob,O=x;") == {"User:alice", "User:CN=bob,O=x"}
    assert parse_super_users("") == frozenset()
    for wrong in ("alice", "User:", ":alice"):
        with pytest.raises(ValueError, match="must be a principal such as User:alice"):
            parse_super_users(wrong)


def test_a_node_has_no_authorizer_unless_one_is_named() -> None:
    assert not NodeConfig().authorizer_class_name
    for name in ACL_AUTHORIZERS:
        config = parse_config(NodeConfig, {"authorizer.class.name": name})
        assert config.authorizer_class_name == name
    assert not parse_config(NodeConfig, {"authorizer.class.name": " "}).authorizer_class_name


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer", "tidelog.acl"),
        ("super.users", "User:alice;bob", "'bob' must be a principal"),
        ("allow.everyone.if.no.acl.found", "yes", "true or false"),
    ],
)
def test_wrong_settings_are_refused(setting: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        parse_config(NodeConfig, {setting: value})
