"""ACLs of a running node, by librdkafka's admin client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.node_process import NodeProcess

SECONDS_MAX = 60.0
SUPER = {"super.users": "User:ANONYMOUS", "authorizer.class.name": "tidelog.acl"}
_RULE = ("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
TOPIC_ACL = AclBinding(ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, *_RULE)
GROUP_ACL = AclBinding(ResourceType.GROUP, "re", ResourcePatternType.PREFIXED, *_RULE)
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminClient]:
    """A client of a node with an authorizer."""
    with NodeProcess(tmp_path_factory.mktemp("acls") / "node", config=SUPER) as node:
        yield AdminClient({"bootstrap.servers": node.address})


def test_librdkafka_creates_describes_and_deletes_acls(admin: AdminClient) -> None:
    for created in admin.create_acls([TOPIC_ACL, GROUP_ACL]).values():
        assert created.result(SECONDS_MAX) is None
    assert set(admin.describe_acls(EVERY_ACL).result(SECONDS_MAX)) == {TOPIC_ACL, GROUP_ACL}
    (deleted,) = admin.delete_acls([EVERY_ACL]).values()
    assert set(deleted.result(SECONDS_MAX)) == {TOPIC_ACL, GROUP_ACL}
    assert admin.describe_acls(EVERY_ACL).result(SECONDS_MAX) == []


def test_librdkafka_is_told_that_there_is_no_authorizer(node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    # Of DescribeAcls librdkafka drops the error, also from Kafka, and finds nothing.
    assert admin.describe_acls(EVERY_ACL).result(SECONDS_MAX) == []
    (created,) = admin.create_acls([TOPIC_ACL]).values()
    (deleted,) = admin.delete_acls([EVERY_ACL]).values()
    for future in (created, deleted):
        with pytest.raises(KafkaException) as disabled:
            future.result(SECONDS_MAX)
        assert disabled.value.args[0].code() == KafkaError.SECURITY_DISABLED
