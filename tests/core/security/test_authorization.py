"""Decisions of ACLs: Kafka's rules, Kafka's own authorizer, and sets that change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.security.acl import (
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.acl_set import AclSet
from tidelog_core.security.authorization import (
    Authorizer,
    Client,
    Decision,
)

from tests.support.kafka_decisions import kafka_class_path, require_same_decisions
from tests.support.random_acls import (
    ALLOW,
    DENY,
    HOSTS,
    LITERAL,
    NAMES,
    OPERATIONS,
    PREFIXED,
    READ,
    TOPIC,
    TYPES,
    USERS,
    WRITE,
    acl,
    acls_drawn,
)

DESCRIBE = AclOperation.DESCRIBE
ALICE = Client(("User:alice",), "10.0.0.1")

ASKED = [one for one in OPERATIONS if one is not AclOperation.ALL]
SETS, MANY_SETS, QUESTIONS = 200, 10_000, 20
SEED = random.SystemRandom().randrange(2**32)


def decide(acls: list[Acl], operation: AclOperation = READ, name: str = "t") -> Decision:
    return Authorizer().decide(AclSet.of(acls), ALICE, operation, TOPIC, name)


clients_drawn = st.builds(
    lambda user, host: Client((f"User:{user}",), host),
    st.sampled_from(USERS[:2]),
    st.sampled_from(HOSTS),
)


def naive(
    authorizer: Authorizer,
    acls: frozenset[Acl],
    client: Client,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    """Decide as the rules are written down, without an index."""
    if authorizer.super_users & set(client.principals):
        return True
    covering = [one for one in acls if one.resource_type == resource_type and one.covers(name)]
    implied = {
        AclOperation.DESCRIBE: {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER},
        AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
    }
    applying = [
        one
        for one in covering
        if one.principal in (*client.principals, "User:*")
        and one.host in (client.host, "*")
        and (
            one.operation in (operation, AclOperation.ALL)
            or (one.permission is ALLOW and one.operation in implied.get(operation, set()))
        )
    ]
    if applying:
        return all(one.permission is ALLOW for one in applying)
    return authorizer.allows_without_acls and not covering


@given(
    st.lists(acls_drawn, max_size=12),
    clients_drawn,
    st.sampled_from(ASKED),
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.booleans(),
    st.booleans(),
)
def test_the_index_changes_no_decision(
    acls: list[Acl],
    client: Client,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    allows: bool,
    has_super_user: bool,
) -> None:
    supers = frozenset({"User:bob"} if has_super_user else ())
    authorizer = Authorizer(super_users=supers, allows_without_acls=allows)
    decision = authorizer.decide(AclSet.of(acls), client, operation, resource_type, name)
    wanted = naive(authorizer, frozenset(acls), client, operation, resource_type, name)
    assert decision.is_allowed == wanted
    if decision.acl is not None:
        assert decision.acl in acls
        assert (decision.acl.permission is ALLOW) == decision.is_allowed


@given(st.lists(st.tuples(st.booleans(), acls_drawn), max_size=30))
def test_a_changed_set_equals_one_built_from_the_start(changes: list[tuple[bool, Acl]]) -> None:
    """CVE-2024-27309: a removed ACL took others of its resource with it."""
    changed, left = AclSet(), set()
    for is_added, one in changes:
        if is_added:
            changed, left = changed.with_changes([one], []), left | {one}
        else:
            changed, left = changed.with_changes([], [one]), left - {one}
    anew = AclSet.of(left)
    assert frozenset(changed) == frozenset(anew) == left
    for resource_type in TYPES:
        assert index_of(changed, resource_type) == index_of(anew, resource_type)
        for name in NAMES:
            assert found(changed, resource_type, name) == found(anew, resource_type, name)


def index_of(acls: AclSet, resource_type: ResourceType) -> set[Acl]:
    return {
        one
        for _, _, by_principal in acls.of_type(resource_type)
        for some in by_principal.values()
        for one in some
    }


def found(acls: AclSet, resource_type: ResourceType, name: str) -> set[Acl]:
    return {
        one
        for by_principal in acls.matching(resource_type, name)
        for some in by_principal.values()
        for one in some
    }


filters_drawn = st.builds(
    AclFilter,
    st.sampled_from((ResourceType.ANY, *TYPES)),
    st.sampled_from(PatternType),
    st.sampled_from((None, *NAMES)),
    st.sampled_from((None, "User:alice")),
)


@given(st.lists(acls_drawn, max_size=20), filters_drawn)
def test_filters_find_by_the_index_what_they_fit(acls: list[Acl], wanted: AclFilter) -> None:
    candidates = AclSet.of(acls).candidates(wanted)
    assert set(filter(wanted.matches, candidates)) == set(filter(wanted.matches, acls))
    if wanted.name is not None:
        assert all(one.covers(wanted.name) or one.name == wanted.name for one in candidates)


def test_a_decision_looks_at_few_of_many_acls() -> None:
    """Counted: the ACLs of other topics and of other users are not looked at."""
    others = [acl(f"topic-{n}", principal=f"User:u{n}") for n in range(1000)]
    shared = [acl("t", principal=f"User:u{n}") for n in range(1000)]
    acls = AclSet.of([*others, *shared, acl("t")])
    (by_principal,) = acls.matching(TOPIC, "t")
    assert by_principal["User:alice"] == (acl("t"),)


def test_deny_wins_wherever_it_is() -> None:
    for pattern_type, name in ((LITERAL, "t"), (LITERAL, ANY_NAME), (PREFIXED, "t")):
        deny = acl(name, READ, DENY, pattern_type=pattern_type)
        decision = decide([acl("t"), acl(ANY_NAME), deny])
        assert decision == Decision(is_allowed=False, acl=deny)


def test_only_allow_implies_describe() -> None:
    assert decide([acl("t", READ)], DESCRIBE).is_allowed
    assert not decide([acl("t", DESCRIBE)], READ).is_allowed
    both = [acl("t", DESCRIBE), acl("t", READ, DENY)]
    assert decide(both, DESCRIBE).is_allowed


def test_groups_and_roles_are_principals_too() -> None:
    client = Client(("User:alice", "Group:sales", "Role:writer"), "10.0.0.1")
    acls = AclSet.of([acl(principal="Group:sales"), acl(operation=WRITE, principal="Role:writer")])
    authorizer = Authorizer()
    for operation in (READ, WRITE):
        assert authorizer.decide(acls, client, operation, TOPIC, "t").is_allowed
        assert not authorizer.decide(acls, ALICE, operation, TOPIC, "t").is_allowed
    denied = acls.with_changes([acl(permission=DENY, principal="Group:sales")], [])
    assert not authorizer.decide(denied, client, READ, TOPIC, "t").is_allowed


def test_everyone_is_allowed_only_where_no_acl_is_about_the_resource() -> None:
    authorizer = Authorizer(allows_without_acls=True)
    acls = AclSet.of([acl("other"), acl("bobs", principal="User:bob")])
    assert authorizer.decide(acls, ALICE, READ, TOPIC, "free").is_allowed
    assert not authorizer.decide(acls, ALICE, READ, TOPIC, "bobs").is_allowed


# -- Kafka's own authorizer --


@pytest.fixture(scope="module")
def class_path() -> str:
    return kafka_class_path()


def random_acl(chance: random.Random) -> Acl:
    resource_type = chance.choice((*TYPES, ResourceType.CLUSTER))
    is_cluster = resource_type is ResourceType.CLUSTER
    return Acl(
        resource_type,
        LITERAL if is_cluster else chance.choice((LITERAL, PREFIXED)),
        CLUSTER_NAME if is_cluster else chance.choice(NAMES),
        f"User:{chance.choice(USERS)}",
        chance.choice((*HOSTS, "*")),
        chance.choice(OPERATIONS),
        chance.choice((ALLOW, ALLOW, DENY)),
    )


def random_filter(chance: random.Random) -> AclFilter:
    return AclFilter(
        chance.choice((ResourceType.ANY, *TYPES)),
        chance.choice(list(PatternType)),
        chance.choice((None, *NAMES)),
        chance.choice((None, "User:alice", "User:*")),
        chance.choice((None, *HOSTS, "*")),
        chance.choice((AclOperation.ANY, READ, WRITE, AclOperation.ALL)),
        chance.choice((AclPermission.ANY, ALLOW, DENY)),
    )


def questions(chance: random.Random, set_count: int) -> Iterator[tuple[str, str]]:
    """Yield lines for Kafka, each with our answer; "": none is given."""
    for _ in range(set_count):
        authorizer = Authorizer(
            super_users=frozenset({"User:bob"} if chance.random() < 0.2 else ()),
            allows_without_acls=chance.random() < 0.5,
        )
        yield line("new", ";".join(authorizer.super_users), str(authorizer.allows_without_acls)), ""
        acls = AclSet.of({random_acl(chance) for _ in range(chance.randint(0, 12))})
        for one in acls:
            yield line("acl", *one), ""
        for _ in range(QUESTIONS):
            user, host = chance.choice(USERS[:2]), chance.choice(HOSTS)
            client = Client((f"User:{user}",), host)
            resource_type, operation = chance.choice(TYPES), chance.choice(ASKED)
            name = chance.choice(NAMES[:-1])
            decision = authorizer.decide(acls, client, operation, resource_type, name)
            yield (
                line("ask", operation, resource_type, name, user, host),
                str(int(decision.is_allowed)),
            )
            operation = chance.choice((WRITE, READ))
            may = authorizer.decide_any(acls, client, operation, resource_type)
            yield line("any", operation, resource_type, user, host), str(int(may))
            wanted = random_filter(chance)
            yield line("find", *wanted), str(sum(map(wanted.matches, acls)))


def line(*fields: object) -> str:
    return "\t".join(
        ""
        if field is None
        else str(int(field))
        if isinstance(field, int) and not isinstance(field, bool)
        else str(field)
        for field in fields
    )


@pytest.mark.parametrize("set_count", [SETS, pytest.param(MANY_SETS, marks=pytest.mark.slow)])
def test_decisions_are_those_of_kafka(class_path: str, tmp_path: Path, set_count: int) -> None:
    print(f"seed {SEED}")
    asked = list(questions(random.Random(SEED), set_count))
    source = Path(__file__).with_name("JavaAuthorizer.java")
    theirs = require_same_decisions(source, asked, class_path=class_path, folder=tmp_path)
    assert {"0", "1"} <= set(theirs)
