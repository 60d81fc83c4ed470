"""The table of APIs and the operations that they need."""

from __future__ import annotations

import pytest
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.operations import (
    ON_CLUSTER,
    ON_GROUP,
    ON_TOPIC,
    OPERATIONS,
    REFUSAL_CODES,
    SUPPORTED_OPERATIONS,
    Need,
    Unmet,
)

NEEDS = [
    pytest.param(need, id=f"{api.name}-{number}")
    for api in OPERATIONS.values()
    for number, need in enumerate(api.needs)
]


@pytest.mark.parametrize("need", NEEDS)
def test_a_needed_operation_can_be_allowed(need: Need) -> None:
    """An ACL for an operation that the resource does not have would never help.

    DELETE of the cluster, for DeleteTopics, is part of ALL.
    """
    assert any(
        operation in SUPPORTED_OPERATIONS[resource_type] for operation, resource_type in need.any_of
    )
    if need.unmet is Unmet.REFUSED:
        assert all(resource_type in REFUSAL_CODES for _, resource_type in need.any_of)
    assert 0 <= need.min_version <= need.max_version


def test_codes_are_those_of_the_protocol() -> None:
    codes = {resource_type.name: int(code) for resource_type, code in REFUSAL_CODES.items()}
    assert codes == {
        "TOPIC": 29,
        "GROUP": 30,
        "CLUSTER": 31,
        "TRANSACTIONAL_ID": 53,
        "DELEGATION_TOKEN": 65,
        "USER": 65,
    }


@pytest.mark.parametrize(
    ("resource_type", "bits"),
    [
        (ResourceType.TOPIC, ON_TOPIC),
        (ResourceType.GROUP, ON_GROUP),
        (ResourceType.CLUSTER, ON_CLUSTER),
    ],
)
def test_bit_fields_have_the_supported_operations(resource_type: ResourceType, bits: int) -> None:
    supported = SUPPORTED_OPERATIONS[resource_type]
    assert {one for one in AclOperation if bits >> one & 1} == supported


@pytest.mark.parametrize("api_key", [27, 43, 69, 77])
def test_no_api_needs_what_kafka_only_documents(api_key: int) -> None:
    """Kafka's documentation names CLUSTER_ACTION and READ for some of these."""
    cluster, group = ResourceType.CLUSTER, ResourceType.GROUP
    alter, describe = AclOperation.ALTER, AclOperation.DESCRIBE
    needed = OPERATIONS[api_key].needs[0].any_of
    assert (alter, cluster) in needed or (describe, group) in needed
    assert (AclOperation.READ, group) not in needed
