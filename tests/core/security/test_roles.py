"""Roles: who has them, and who may be a member."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import InvalidRequest
from tidelog_core.security import roles
from tidelog_core.security.roles import RoleSet, check_members, check_role_name
from tidelog_core.turns import at_once

NAMES, MEMBERS = ("a", "b", "c"), ("User:x", "User:y", "Group:x")
changes_drawn = st.lists(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.none() | st.lists(st.sampled_from(MEMBERS), unique=True).map(tuple),
        max_size=3,
    ),
    max_size=6,
)


@given(changes_drawn)
def test_a_changed_set_equals_one_built_from_the_start(
    changes: list[dict[str, tuple[str, ...] | None]],
) -> None:
    changed, left = RoleSet(), dict[str, tuple[str, ...]]()
    for one in changes:
        changed = at_once(changed.changing(one))
        left |= {name: members for name, members in one.items() if members is not None}
        for name in [name for name, members in one.items() if members is None]:
            left.pop(name, None)
    assert changed.members == left
    assert changed.member_count == sum(map(len, left.values()))
    for asked in ((), MEMBERS[:1], MEMBERS[1:], MEMBERS):
        has = sorted(name for name, members in left.items() if {*members} & {*asked})
        assert changed.principals(asked) == (*asked, *(f"Role:{name}" for name in has))


@pytest.mark.parametrize("name", ["", "a b", "Role:x", "ä", "x" * 250, "a/b"])
def test_names_are_those_of_topics(name: str) -> None:
    with pytest.raises(InvalidRequest, match="1 to 249"):
        check_role_name(name)
    check_role_name("Data-engineers_2.eu")


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ("alice", "User:alice or Group:sales"),
        ("User:", "User:alice or Group:sales"),
        ("Role:other", "User:alice or Group:sales"),
        ("Node:1", "User:alice or Group:sales"),
        ("User:*", "add ACLs of User:\\*"),
        ("Group:*", "add ACLs of User:\\*"),
        ("User:" + "x" * 1000, "1005 characters, allowed are 1000"),
    ],
)
def test_members_are_users_and_groups_by_name(member: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        check_members(["User:alice", member])
    check_members(["User:CN=alice,O=Example", "Group:sales"])


def test_members_are_bounded_by_number_and_by_size() -> None:
    check_members(f"User:{number}" for number in range(roles.MEMBERS_MAX))
    with pytest.raises(InvalidRequest, match="1001 members, allowed are 1000"):
        check_members(f"User:{number}" for number in range(roles.MEMBERS_MAX + 1))
    with pytest.raises(InvalidRequest, match="bytes, allowed are 131072"):
        check_members(f"User:{'ü' * 400}{number}" for number in range(200))
