"""The rights that each operation needs: those of the nodes' API that does the same.

The table names the API; ``tidelog_core.security.operations`` has what it needs. An operation
without an entry is not served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidelog_core.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TidelogError,
    TopicAuthorizationFailed,
)
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.operations import OPERATIONS, Need, Unmet, When

from tidelog_functions.admin.caller import Caller
from tidelog_functions.admin.contract import Call

Names = Mapping[ResourceType, Sequence[str]]

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_OPTIONS = {_TOPIC: "--topic", _GROUP: "--group"}  # of ``tidelog acl``
_ERRORS: Mapping[ResourceType, type[TidelogError]] = {
    _TOPIC: TopicAuthorizationFailed,
    _GROUP: GroupAuthorizationFailed,
    _CLUSTER: ClusterAuthorizationFailed,
}


def _nothing(_: Call) -> Names:
    return {}


def _topic(call: Call) -> Names:
    return {_TOPIC: (call.parameters["topic"],)}


def _new_topic(call: Call) -> Names:
    return {_TOPIC: (call.body["name"],)}


def _topic_of_body(call: Call) -> Names:
    return {_TOPIC: (call.body["topic"],)}


def _group(call: Call) -> Names:
    return {_GROUP: (call.parameters["group_id"],)}


def _group_and_topics(call: Call) -> Names:
    return {**_group(call), _TOPIC: [asked["topic"] for asked in call.body["topics"]]}


@dataclass(frozen=True, slots=True)
class NeededRights:
    """The API whose needs an operation has, and the resources that a call names."""

    api_key: int
    names: Callable[[Call], Names] = _nothing
    when: When = When.ALWAYS  # besides the needs that always apply
    # Resources that only the answer names: the operation leaves out those that are hidden.
    answered: tuple[ResourceType, ...] = ()


RIGHTS: Mapping[str, NeededRights] = {
    "get_document": NeededRights(18),
    "list_brokers": NeededRights(60),
    "drain_broker": NeededRights(45),
    "describe_broker_configs": NeededRights(32, when=When.ABOUT_CLUSTER),
    "describe_every_broker_configs": NeededRights(32, when=When.ABOUT_CLUSTER),
    "alter_broker_configs": NeededRights(44, when=When.ABOUT_CLUSTER),
    "alter_every_broker_configs": NeededRights(44, when=When.ABOUT_CLUSTER),
    "list_topics": NeededRights(3, answered=(_TOPIC,)),
    "create_topic": NeededRights(19, _new_topic),
    "describe_topic": NeededRights(75, _topic),
    "delete_topic": NeededRights(20, _topic),
    "describe_topic_configs": NeededRights(32, _topic, When.ABOUT_TOPIC),
    "alter_topic_configs": NeededRights(44, _topic, When.ABOUT_TOPIC),
    "list_partitions": NeededRights(75, _topic),
    "describe_partition": NeededRights(75, _topic),
    "create_partitions": NeededRights(37, _topic),
    "start_reassignment": NeededRights(45),
    "cancel_reassignment": NeededRights(45),
    "list_reassignments": NeededRights(46),
    "list_groups": NeededRights(16, answered=(_GROUP,)),
    "describe_group": NeededRights(69, _group, answered=(_TOPIC,)),
    "delete_group": NeededRights(42, _group),
    "describe_group_configs": NeededRights(32, _group, When.ABOUT_GROUP),
    "alter_group_configs": NeededRights(44, _group, When.ABOUT_GROUP),
    "describe_tier": NeededRights(75, _topic),
    "start_verification": NeededRights(46),
    "start_erasure": NeededRights(21, _topic_of_body),
    # Topics that the caller may not describe are among the others.
    "describe_costs": NeededRights(46),
    # For its caller, and for clients that may describe the cluster (alter it to cancel): ``jobs``.
    "list_jobs": NeededRights(18),
    "describe_job": NeededRights(18),
    "describe_receipt": NeededRights(18),
    "cancel_job": NeededRights(18),
    "reset_offsets": NeededRights(8, _group_and_topics),
}


def require_rights(caller: Caller, call: Call) -> None:
    """Raise the error of the first need that the caller does not meet.

    Raises ``TopicAuthorizationFailed``, ``GroupAuthorizationFailed`` and
    ``ClusterAuthorizationFailed``.
    """
    asked = RIGHTS[call.operation]
    names = {_CLUSTER: (CLUSTER_NAME,), **asked.names(call)}
    for need in OPERATIONS[asked.api_key].needs:
        if need.when not in (When.ALWAYS, asked.when) or need.unmet is Unmet.WITHHELD:
            continue
        if any(permission.resource_type in asked.answered for permission in need.any_of):
            continue
        _require(caller, need, names)


def require_visible(caller: Caller, topics: Sequence[str]) -> None:
    """Raise ``TopicAuthorizationFailed`` unless the caller may describe all the topics."""
    for topic in topics:
        if not caller.has_right(AclOperation.DESCRIBE, _TOPIC, topic):
            refuse(caller, AclOperation.DESCRIBE, _TOPIC, topic)


def _require(caller: Caller, need: Need, names: Names) -> None:
    for operation, resource_type in need.any_of:
        protected = any(caller.protects(operation, _TOPIC, name) for name in names.get(_TOPIC, ()))
        if not protected and all(
            caller.has_right(operation, resource_type, name) for name in names[resource_type]
        ):
            return
    # The last one is about the resource itself, if the cluster can stand in for it.
    operation, resource_type = need.any_of[-1]
    for name in names[resource_type]:
        if not caller.has_right(operation, resource_type, name):
            refuse(caller, operation, resource_type, name)


def refuse(caller: Caller, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
    """Log the denial and raise its error, unless it is a dry run.

    Raises as ``require_rights``.
    """
    if not caller.deny(operation, resource_type, name):
        return
    about = (
        "the cluster" if resource_type is _CLUSTER else f"the {resource_type.name.lower()} {name}"
    )
    error = _ERRORS[resource_type](f"{caller.name} may not {operation.name} {about}")
    option = f"{_OPTIONS[resource_type]} NAME" if resource_type in _OPTIONS else "--cluster"
    error.hint = (
        f"add an ACL: `tidelog acl add {option} --operation {operation.name} --allow-principal …`"
    )
    raise error
