"""The admin API asks the cluster's ACLs, for every operation."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from tidelog_core.admin.security.acls import AclAdmin
from tidelog_core.admin.security.roles import RoleAdmin, RoleChange
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import add
from tidelog_core.cost.prices import list_prices
from tidelog_core.metadata.admin_jobs import JobKind
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.security.acls import acl_id, acl_key, stored_acl
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.role_messages import CREATE
from tidelog_core.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.operations import OPERATIONS as OPERATIONS_OF_NODES
from tidelog_functions.admin.api import GET_DOCUMENT, OPERATIONS
from tidelog_functions.admin.caller import principal_of
from tidelog_functions.admin.contract import load_contract
from tidelog_functions.admin.rights import RIGHTS
from tidelog_functions.admin_jobs.states import new_job

from tests.support.admin_calls import (
    CALLER,
    CALLER_HOST,
    GROUP_SHARDS,
    Answered,
    Api,
    new_cluster,
    open_api,
    put_group,
)

T, G, C = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALL, READ = AclOperation.ALL, AclOperation.READ
MAKE, DELETE, ALTER = AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER
DESCRIBE = AclOperation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
WITH_ACLS = {"authorizer.class.name": "tidelog.acl"}
NAMES = {T: "t", G: "g", C: CLUSTER_NAME}
REFUSED = {
    T: "TOPIC_AUTHORIZATION_FAILED",
    G: "GROUP_AUTHORIZATION_FAILED",
    C: "CLUSTER_AUTHORIZATION_FAILED",
}

Right = tuple[AclOperation, ResourceType]
ONE = {"name": "x", "operation": "delete"}  # whatever the kind, an answer after the rights
NOTHING = {"alterations": [ONE], "validate_only": True}
RESET = {"to": "earliest", "topics": [{"topic": "t"}], "validate_only": True}


class Case(NamedTuple):
    """A call of an operation, and each set of rights that is enough."""

    method: str
    target: str
    enough: tuple[set[Right], ...]
    refused: ResourceType | None  # of the error without any right
    body: object = None


EVERYONE: tuple[set[Right], ...] = (set(),)
CASES: Mapping[str, Case] = {
    "get_document": Case("GET", "/openapi.json", EVERYONE, None),
    "list_brokers": Case("GET", "/brokers", EVERYONE, None),
    "drain_broker": Case("POST", "/brokers/3/drain", ({(ALTER, C)},), C),
    "describe_broker_configs": Case("GET", "/brokers/1/configs", ({(DESCRIBE_CONFIGS, C)},), C),
    "describe_every_broker_configs": Case("GET", "/brokers/configs", ({(DESCRIBE_CONFIGS, C)},), C),
    "alter_broker_configs": Case(
        "PATCH", "/brokers/1/configs", ({(ALTER_CONFIGS, C)},), C, NOTHING
    ),
    "alter_every_broker_configs": Case(
        "PATCH", "/brokers/configs", ({(ALTER_CONFIGS, C)},), C, NOTHING
    ),
    "list_topics": Case("GET", "/topics", EVERYONE, None),
    "create_topic": Case(
        *("POST", "/topics", ({(MAKE, T)}, {(MAKE, C)}), T),
        {"name": "t", "validate_only": True},
    ),
    "describe_topic": Case("GET", "/topics/t", ({(DESCRIBE, T)},), T),
    "delete_topic": Case("DELETE", "/topics/t", ({(DELETE, T)}, {(DELETE, C)}), T),
    "describe_topic_configs": Case("GET", "/topics/t/configs", ({(DESCRIBE_CONFIGS, T)},), T),
    "alter_topic_configs": Case("PATCH", "/topics/t/configs", ({(ALTER_CONFIGS, T)},), T, NOTHING),
    "list_partitions": Case("GET", "/topics/t/partitions", ({(DESCRIBE, T)},), T),
    "describe_partition": Case("GET", "/topics/t/partitions/0", ({(DESCRIBE, T)},), T),
    "create_partitions": Case(
        *("POST", "/topics/t/partitions", ({(ALTER, T)},), T),
        {"partition_count": 3, "validate_only": True},
    ),
    "start_reassignment": Case(
        *("PUT", "/topics/t/partitions/0/reassignment", ({(ALTER, C)},), C),
        {"replicas": [1]},
    ),
    "cancel_reassignment": Case(
        "DELETE", "/topics/t/partitions/0/reassignment", ({(ALTER, C)},), C
    ),
    "list_reassignments": Case("GET", "/reassignments", ({(DESCRIBE, C)},), C),
    "list_groups": Case("GET", "/groups", EVERYONE, None),
    "describe_group": Case("GET", "/group?group_id=g", ({(DESCRIBE, G)},), G),
    "delete_group": Case("DELETE", "/group?group_id=g", ({(DELETE, G)},), G),
    "describe_group_configs": Case(
        "GET", "/group/configs?group_id=g", ({(DESCRIBE_CONFIGS, G)},), G
    ),
    "alter_group_configs": Case(
        "PATCH", "/group/configs?group_id=g", ({(ALTER_CONFIGS, G)},), G, NOTHING
    ),
    "describe_tier": Case("GET", "/topics/t/tier", ({(DESCRIBE, T)},), T),
    "describe_costs": Case("GET", "/costs", ({(DESCRIBE, C)},), C),
    "start_verification": Case("POST", "/verifications", ({(DESCRIBE, C)},), C, {}),
    "start_erasure": Case(
        *("POST", "/erasures", ({(DELETE, T)},), T),
        {"topic": "t", "key_base64": "aw=="},
    ),
    # Of somebody else's job: see ``test_a_job_is_its_callers_and_the_clusters``.
    "list_jobs": Case("GET", "/jobs", EVERYONE, None),
    "describe_job": Case("GET", "/jobs/x", EVERYONE, None),
    "describe_receipt": Case("GET", "/jobs/x/receipt", EVERYONE, None),
    "cancel_job": Case("POST", "/jobs/x/cancel", EVERYONE, None),
    "reset_offsets": Case(
        "POST", "/group/offsets/reset?group_id=g", ({(READ, G), (READ, T)},), G, RESET
    ),
}


class Rights:
    """The ACLs of a cluster, as an administrator of its nodes changes them."""

    def __init__(self, api: Api) -> None:
        self._run = api.runner.run
        self._store = api.cluster.store
        self._view = ClusterView(self._store, shows_security=True)
        self._admin = AclAdmin(self._store, self._view)

    def set(self, *acls: Acl) -> None:
        """Leave the cluster these ACLs alone."""
        self._run(self._admin.delete([AclFilter()]))
        assert not any(self._run(self._admin.create(acls)))

    def give(self, member: str, role: str) -> None:
        change = RoleChange(role, CREATE, [member])
        assert self._run(RoleAdmin(self._store, self._view).alter([change])) == {role: None}


def rule(operation: AclOperation, kind: ResourceType, name: str = "", **fields: Any) -> Acl:
    """Return an ACL of the caller."""
    pattern = PatternType.LITERAL
    one = Acl(kind, pattern, name or NAMES[kind], CALLER, "*", operation, AclPermission.ALLOW)
    return one._replace(**fields)


Open = Callable[..., AbstractContextManager[Api]]


@pytest.fixture
def secured(tmp_path: Path) -> Open:
    """Opens the API with an authorizer. What there is was made before anybody asked ACLs."""
    with new_cluster(tmp_path) as api:
        offsets = {"name": "__consumer_offsets", "partition_count": GROUP_SHARDS}
        api.done("POST", "/topics", offsets)
        api.done("POST", "/topics", {"name": "t", "partition_count": 2})
        api.done("POST", "/topics", {"name": "u"})
        put_group(api, "g")
        put_group(api, "h")

    def opened(**settings: str) -> AbstractContextManager[Api]:
        config = parse_config(NodeConfig, WITH_ACLS | settings)
        return open_api(f"sqlite://{tmp_path}/metadata.db", node_config=config)

    return opened


@pytest.fixture
def api(secured: Open) -> Iterator[Api]:
    with secured() as api:
        yield api


def call(api: Api, operation: str) -> Answered:
    case = CASES[operation]
    path, _, query = case.target.partition("?")
    return api(case.method, path, case.body, **dict([query.split("=")] if query else []))


def test_every_operation_has_an_entry_and_a_case() -> None:
    """An operation without an entry would end in an error, one without a case be untested."""
    assert RIGHTS.keys() == OPERATIONS.keys() | {GET_DOCUMENT} == load_contract().operation_names
    assert CASES.keys() == RIGHTS.keys()
    assert {asked.api_key for asked in RIGHTS.values()} <= OPERATIONS_OF_NODES.keys()


@pytest.mark.parametrize("operation", CASES)
def test_an_operation_needs_all_of_its_rights_and_no_other(operation: str, api: Api) -> None:
    rights, case = Rights(api), CASES[operation]
    every = {right for some in case.enough for right in some}
    for size in range(len(every) + 1):
        for given in itertools.combinations(sorted(every), size):
            rights.set(*(rule(*right) for right in given))
            answer = call(api, operation)
            if any(some <= set(given) for some in case.enough):
                assert answer.status not in (401, 403, 500), (given, answer)
            else:
                assert answer.status == 403, (given, answer)
            if not given and case.refused is not None:
                assert answer.problem == (403, REFUSED[case.refused])
                assert CALLER in answer.body["detail"]
                assert "tidelog acl add" in answer.body["hint"]
    if every:  # The other operations together do not help; some imply DESCRIBE.
        kinds = [kind for kind in NAMES if (DESCRIBE, kind) not in every]
        others = {(one, kind) for kind in kinds for one in (READ, ALTER, DELETE, MAKE)} - every
        rights.set(*(rule(*right) for right in others))
        assert call(api, operation).status == 403


def test_rights_to_another_resource_are_none(api: Api) -> None:
    Rights(api).set(rule(ALL, T, "u"), rule(ALL, G, "h"))
    for operation, case in CASES.items():
        if case.refused is not None:
            assert call(api, operation).status == 403, operation


def test_lists_have_what_the_caller_may_describe(api: Api) -> None:
    rights = Rights(api)

    def names() -> tuple[set[str], set[str]]:
        topics = api.done("GET", "/topics")["topics"]
        groups = api.done("GET", "/groups")["groups"]
        return {one["name"] for one in topics}, {one["group_id"] for one in groups}

    rights.set()
    assert names() == (set(), set())
    rights.set(rule(READ, T, "u"), rule(DELETE, G, "h"))
    assert names() == ({"u"}, {"h"})
    rights.set(rule(DESCRIBE, C))
    assert names() == (set(), {"g", "h"})


class NoRuns:
    """Starts nothing: a job waits."""

    async def start(self, job_id: UUID) -> None:
        pass


def test_a_job_is_its_callers_and_the_clusters(api: Api) -> None:
    rights = Rights(api)
    api.cluster.jobs = NoRuns()
    rights.set(rule(DESCRIBE, C), rule(DELETE, T))
    body = {"topic": "t", "key_base64": "aw=="}
    mine = api.done("POST", "/erasures", body)["job_id"]
    other = new_job(uuid4(), JobKind.VERIFICATION, '{"topics":[]}', caller="User:other", now_ms=1)
    api.commit(put(other, is_logged=False))
    path = f"/jobs/{other.job_id}"
    assert [job["job_id"] for job in api.done("GET", "/jobs")["jobs"]] == [mine, str(other.job_id)]
    assert api("GET", path).status == 200
    assert api("POST", f"{path}/cancel").problem == (403, REFUSED[C])
    rights.set()
    assert [job["job_id"] for job in api.done("GET", "/jobs")["jobs"]] == [mine]
    for method, target in (("GET", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/receipt")):
        assert api(method, target).problem == (404, "RESOURCE_NOT_FOUND")
    assert api("GET", f"/jobs/{mine}/receipt").status == 404  # It has none yet.
    shown = api.done("GET", f"/jobs/{mine}")
    assert (shown["state"], shown["caller"], shown["topics"]) == ("waiting", CALLER, ["t"])
    assert "aw==" not in str(shown)
    assert api.done("POST", f"/jobs/{mine}/cancel")["state"] == "cancelled"
    rights.set(rule(ALTER, C))
    assert api.done("POST", f"{path}/cancel")["state"] == "cancelled"


def test_offsets_of_hidden_topics_are_left_out(api: Api) -> None:
    rights = Rights(api)
    for shown in ((), ("t",)):
        rights.set(
            rule(DESCRIBE, G), rule(DESCRIBE, T, "u"), *(rule(READ, T, one) for one in shown)
        )
        offsets = api.done("GET", "/group", group_id="g")["offsets"]
        assert tuple(one["topic"] for one in offsets) == shown


def test_costs_of_hidden_topics_are_among_the_others(api: Api) -> None:
    rights = Rights(api)
    hour = time.time_ns() // 1_000_000 // HOUR_MS
    tally = Tally()
    for topic in ("t", "u"):
        tally.add("object-put", 1_000, topic=topic)
    limits = Limits(list_prices(), 20)
    addition = Addition("a", hour, "node-1", tally)
    assert api.runner.run(add(api.cluster.store, addition, limits, now_hour=hour))
    for shown, names in ((("t", "u"), {"t", "u"}), (("t",), {"t", "(others)"}), ((), {"(others)"})):
        rights.set(rule(DESCRIBE, C), *(rule(DESCRIBE, T, one) for one in shown))
        topics = api.done("GET", "/costs")["topics"]
        assert {one["topic"] for one in topics} == names
        assert sum(one["dollars"] for one in topics) == 0.01


def test_a_deny_a_host_a_role_and_a_super_user_count_as_in_nodes(api: Api, secured: Open) -> None:
    rights, everything = Rights(api), rule(ALL, T, "*")

    def status(*acls: Acl) -> int:
        rights.set(*acls)
        return api("GET", "/topics/t").status

    assert status(everything) == 200
    assert status(everything, rule(DESCRIBE, T, permission=AclPermission.DENY)) == 403
    assert status(everything._replace(host="10.0.0.1")) == 403
    assert status(everything._replace(host=CALLER_HOST)) == 200
    assert status(everything._replace(principal="Role:engineers")) == 403
    rights.give(CALLER, "engineers")
    assert api("GET", "/topics/t").status == 200
    assert status() == 403
    with secured(**{"super.users": f"User:admin;{CALLER}"}) as by_super_user:
        assert by_super_user("GET", "/topics/t").status == 200
        assert by_super_user("GET", "/reassignments").status == 200
    with secured(**{"allow.everyone.if.no.acl.found": "true"}) as without_acls:
        assert without_acls("GET", "/topics/t").status == 200


def test_while_an_acl_cannot_be_read_only_super_users_may_do_anything(
    api: Api, secured: Open
) -> None:
    Rights(api).set(rule(ALL, T))
    other = rule(READ, G)
    key = acl_key(acl_id(other))
    api.commit(Write(key, {"of": "tomorrow"}, ANY_VERSION))
    assert api("GET", "/topics/t").status == 403
    with secured(**{"super.users": CALLER}) as by_super_user:
        assert by_super_user("GET", "/topics/t").status == 200
    api.commit(Write(key, stored_acl(other).to_body(), ANY_VERSION))
    assert api("GET", "/topics/t").status == 200


def test_a_dry_run_denies_nothing_and_logs_what_it_would(
    api: Api, secured: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert api("GET", "/topics/t").status == 403
    with secured(**{"authorizer.dry.run": "true"}) as dry:
        assert dry("GET", "/topics/t").status == 200
        assert {one["name"] for one in dry.done("GET", "/topics")["topics"]} == {"t", "u"}
    denied, would_be = [one for one in caplog.records if "denied" in one.message]
    assert (denied.message, would_be.message) == ("denied", "would be denied")
    fields = {
        "principal": CALLER,
        "host": CALLER_HOST,
        "operation": "DESCRIBE",
        "resource": "TOPIC t",
    }
    for record in (denied, would_be):
        assert fields.items() <= vars(record).items()


def test_nobody_deletes_the_audit_topic_while_it_is_written(secured: Open) -> None:
    with secured(**{"super.users": CALLER, "audit.enable": "true"}) as audited:
        audited.done("POST", "/topics", {"name": "__tidelog_audit"})
        refused = audited("DELETE", "/topics/__tidelog_audit")
        assert refused.problem == (403, "TOPIC_AUTHORIZATION_FAILED")
        assert audited("DELETE", "/topics/u").status == 200


def test_without_an_authorizer_iam_alone_decides(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as unguarded:
        unguarded.done("POST", "/topics", {"name": "t"})
        Rights(unguarded).set(rule(ALL, T, permission=AclPermission.DENY))
        assert unguarded("GET", "/topics/t").status == 200


IAM, STS = "arn:aws:iam::123456789012", "arn:aws:sts::123456789012"


@pytest.mark.parametrize(
    ("arn", "principal"),
    [
        (f"{IAM}:user/team/alice", f"User:{IAM}:user/team/alice"),
        (f"{IAM}:root", f"User:{IAM}:root"),
        (f"{STS}:assumed-role/Admin/alice@example.org", f"User:{IAM}:role/Admin"),
        ("arn:aws-cn:sts::1:assumed-role/Admin/a/b", "User:arn:aws-cn:iam::1:role/Admin"),
        (f"{STS}:federated-user/alice", f"User:{STS}:federated-user/alice"),
    ],
)
def test_a_role_is_one_principal_whatever_its_session_is_called(arn: str, principal: str) -> None:
    assert principal_of(arn) == principal
