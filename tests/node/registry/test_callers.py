"""Who may call the registry of a node whose clients log in, or have certificates."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_node.registry.callers import parse_basic

from tests.support.sasl_node import PASSWORD, SECONDS_MAX, USER, SaslNode
from tests.support.waiting import eventually
from tools.ports import free_port

SCHEMA = {"schema": '"int"'}


class GuardedNode(SaslNode):
    """Its first listener asks for logins, and so does its registry."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(
            data_dir, authorizer_class_name="tidelog.acl", super_users="User:ANONYMOUS"
        )
        first, second = self.config["listeners"].split(",")
        self.config["listeners"] = f"{second},{first}"
        self.registry_port = free_port()
        self.arguments += ("--registry-port", str(self.registry_port))

    def allow(self, topic: str, operation: AclOperation) -> None:
        """Let the user do something to a topic."""
        binding = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": self.address})
        for done in admin.create_acls([binding]).values():
            done.result(SECONDS_MAX)

    def call(
        self, method: str, path: str, body: Any = None, login: str | None = None
    ) -> tuple[int, Any]:
        """Return status and answer of a request to the registry."""
        headers = {"Content-Type": "application/json"}
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.registry_port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedNode]:
    with GuardedNode(tmp_path_factory.mktemp("guarded") / "node") as running:
        running.set_password(PASSWORD)
        login = f"{USER}:{PASSWORD}"
        eventually(lambda: running.call("GET", "/subjects", login=login)[0] == 200)
        yield running


def test_a_caller_logs_in_as_a_user_of_the_cluster(node: GuardedNode) -> None:
    assert node.call("GET", "/subjects") == (401, {"error_code": 401, "message": "Unauthorized"})
    assert node.call("GET", "/subjects", login=f"{USER}:wrong")[0] == 401
    assert node.call("GET", "/subjects", login=f"nobody:{PASSWORD}")[0] == 401
    assert node.call("GET", "/subjects", login=f"{USER}:{PASSWORD}") == (200, [])
    assert PASSWORD not in node.log


def test_rights_to_a_topic_are_rights_to_its_subjects(node: GuardedNode) -> None:
    login = f"{USER}:{PASSWORD}"

    def register(subject: str) -> int:
        return node.call("POST", f"/subjects/{subject}/versions", SCHEMA, login)[0]

    assert register("bills-value") == 403
    node.allow("bills", AclOperation.WRITE)
    eventually(lambda: register("bills-value") == 200, lambda: "the ACL counts")
    assert register("orders-value") == 403
    assert register("bills") == 403  # It is the subject of no topic.
    assert node.call("GET", "/subjects", login=login) == (200, ["bills-value"])
    assert node.call("GET", "/schemas/ids/1", login=login)[0] == 200
    assert node.call("DELETE", "/subjects/bills-value", login=login)[0] == 403
    assert node.call("PUT", "/config", {"compatibility": "NONE"}, login)[0] == 403


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Bearer abc", "Basic !!!", "Basic YQ==", "Basic " + "A" * 10_000, "Basic /w=="],
)
def test_a_header_without_a_login_is_refused(header: str) -> None:
    with pytest.raises(RegistryRefusal) as refused:
        parse_basic(header)
    assert refused.value.status == 401
