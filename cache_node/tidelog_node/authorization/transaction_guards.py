"""The guards of the APIs about transactions and producers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.operations import REFUSAL_CODES

from tidelog_node.authorization.guard import Denied, Guard, GuardedCall, each_topic
from tidelog_node.authorization.refusals import element_class, refusal

_GROUP, _TOPIC = ResourceType.GROUP, ResourceType.TOPIC
_TRANSACTION = ResourceType.TRANSACTIONAL_ID
_READ, _WRITE, _DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


async def _init_producer_id(call: GuardedCall) -> Any:
    """WRITE of the transactional id. Without one: any right to write (KIP-679)."""
    request = call.request
    transactional_id = request.transactional_id
    values = {"producer_id": -1, "producer_epoch": -1}
    if transactional_id is None:
        may_write = call.has_right_to_cluster(AclOperation.IDEMPOTENT_WRITE) or (
            call.access.may_with_some(call.context.session, _WRITE, _TOPIC)
        )
        return await call.go_on() if may_write else call.refuse(ResourceType.CLUSTER, **values)
    needed = [_WRITE]
    if request.enable2_pc:
        needed.append(AclOperation.TWO_PHASE_COMMIT)
    if all(call.may(operation, _TRANSACTION, transactional_id) for operation in needed):
        return await call.go_on()
    return call.refuse(_TRANSACTION, **values)


async def _add_partitions(call: GuardedCall) -> Any:
    """WRITE of the transactional id and of all topics, or nothing is added.

    The newer versions are for nodes alone.
    """
    request, field = call.request, "results_by_topic_v3_and_below"
    if hasattr(request, "transactions"):
        if call.may_to_cluster(AclOperation.CLUSTER_ACTION):
            return await call.go_on()
        return call.refuse(ResourceType.CLUSTER)
    topics = request.v3_and_below_topics
    if not call.may(_WRITE, _TRANSACTION, request.v3_and_below_transactional_id):
        return await call.refuse_each(_TRANSACTION, topics, field)
    allowed, denied = await call.topics_by(_WRITE, topics)
    if not denied:
        return await call.go_on()
    denied += [Denied(topic, ErrorCode.operation_not_attempted) for topic in allowed]
    return refusal(call.answer_class, **{field: await call.refused(denied, field)})


async def _add_offsets(call: GuardedCall) -> Any:
    request = call.request
    if not call.may(_WRITE, _TRANSACTION, request.transactional_id):
        return call.refuse(_TRANSACTION)
    if not call.may(_READ, _GROUP, request.group_id):
        return call.refuse(_GROUP)
    return await call.go_on()


async def _end_transaction(call: GuardedCall) -> Any:
    if call.may(_WRITE, _TRANSACTION, call.request.transactional_id):
        return await call.go_on()
    return call.refuse(_TRANSACTION)


async def _commit_offsets(call: GuardedCall) -> Any:
    request = call.request
    if not call.may(_WRITE, _TRANSACTION, request.transactional_id):
        return await call.refuse_each(_TRANSACTION, request.topics, "topics")
    if not call.may(_READ, _GROUP, request.group_id):
        return await call.refuse_each(_GROUP, request.topics, "topics")
    allowed, denied = await call.topics_by(_READ, request.topics)
    return await call.go_on_with(allowed, denied, asked="topics", answered="topics")


async def _write_markers(call: GuardedCall) -> Any:
    """Either operation; the handler serves nodes only, without regard to ACLs."""
    may_write = call.has_right_to_cluster(AclOperation.ALTER) or call.may_to_cluster(
        AclOperation.CLUSTER_ACTION
    )
    if may_write:
        return await call.go_on()
    code = REFUSAL_CODES[ResourceType.CLUSTER]
    inner = element_class(call.answer_class, "markers")
    topic_class = element_class(inner, "topics")
    markers = [
        refusal(
            inner,
            producer_id=marker.producer_id,
            topics=await call.refused_as(
                topic_class, (Denied(topic, code) for topic in marker.topics)
            ),
        )
        async for marker in call.turn.each(call.request.markers)
    ]
    return refusal(call.answer_class, markers=tuple(markers))


async def _describe_transactions(call: GuardedCall) -> Any:
    """DESCRIBE of each transactional id; of a transaction's topics, the others are left out."""
    request = call.request
    allowed, hidden = await call.names_by(_DESCRIBE, _TRANSACTION, request.transactional_ids)
    denied = await call.refused_names(
        hidden, _TRANSACTION, "transaction_states", "transactional_id"
    )
    answer = await call.go_on(dataclasses.replace(request, transactional_ids=allowed))
    states = [
        dataclasses.replace(state, topics=await call.visible(state.topics))
        async for state in call.turn.each(answer.transaction_states)
    ]
    return dataclasses.replace(answer, transaction_states=(*states, *denied))


async def _list_transactions(call: GuardedCall) -> Any:
    answer = await call.go_on()
    shown = [
        state
        async for state in call.turn.each(answer.transaction_states)
        if call.sees(_TRANSACTION, state.transactional_id)
    ]
    return dataclasses.replace(answer, transaction_states=tuple(shown))


TRANSACTION_GUARDS: Mapping[int, Guard] = {
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets,
    ApiKey.END_TXN: _end_transaction,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    ApiKey.TXN_OFFSET_COMMIT: _commit_offsets,
    ApiKey.DESCRIBE_PRODUCERS: each_topic(),
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
}
