"""The bit fields of all operations that a resource has: those of a client on a node without ACLs.

Source: ``AclEntry.supportedOperations`` of Kafka; bit ``1 << code``.
"""

from __future__ import annotations

from tidelog_core.security.acl import ResourceType
from tidelog_core.security.operations import SUPPORTED_OPERATIONS

NOT_REQUESTED = -(2**31)


def _all_of(resource_type: ResourceType) -> int:
    return sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])


ON_TOPIC = _all_of(ResourceType.TOPIC)
ON_CLUSTER = _all_of(ResourceType.CLUSTER)
ON_GROUP = _all_of(ResourceType.GROUP)
