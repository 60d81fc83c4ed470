"""The ACLs that a caller of the registry needs.

ACLs have no resource for subjects: a subject of a topic, such as ``orders-value``, takes the
topic's, and any other takes the cluster's. Rights to the cluster count for every subject.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.schema_registry.api.calls import Right
from tidelog_core.schemas.subject_names import SubjectName
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType

SUFFIXES = ("-key", "-value")  # of the subjects of a topic
_TOPIC_OPERATIONS = {
    Right.READ: AclOperation.DESCRIBE,
    Right.WRITE: AclOperation.WRITE,
    Right.DELETE: AclOperation.DELETE,
    Right.READ_SETTINGS: AclOperation.DESCRIBE_CONFIGS,
    Right.WRITE_SETTINGS: AclOperation.ALTER_CONFIGS,
}
_CLUSTER_OPERATIONS = {
    **_TOPIC_OPERATIONS,
    Right.WRITE: AclOperation.ALTER,
    Right.DELETE: AclOperation.ALTER,
}


class NeededAcl(NamedTuple):
    """What an ACL has to allow."""

    operation: AclOperation
    resource_type: ResourceType
    name: str


def of_cluster(right: Right) -> NeededAcl:
    """Return the right to the cluster that counts for every subject."""
    return NeededAcl(_CLUSTER_OPERATIONS[right], ResourceType.CLUSTER, CLUSTER_NAME)


def of_subject(right: Right, subject: str) -> NeededAcl:
    """Return the right to the subject; "": to everything."""
    name = SubjectName.parse(subject).subject
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            topic = name.removesuffix(suffix)
            return NeededAcl(_TOPIC_OPERATIONS[right], ResourceType.TOPIC, topic)
    return of_cluster(right)
