"""A guard runs before the handler of an API and passes on only what the client may ask for.

It takes the refused elements out of the request, has the handler answer the rest, and adds the
refused ones to the answer. So handlers need not know of ACLs, and nothing that is refused reaches
them. Source: ``AuthHelper`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidelog_core.errors import ErrorCode, StoreUnavailable
from tidelog_core.message_schemas import load_response_schema
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.operations import REFUSAL_CODES, operation_needed

from tidelog_node.authorization.access import Access
from tidelog_node.authorization.refusals import NOTHING, element_class, refusal, refused
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.requests.routes import RequestContext, Route

_TOPIC_FIELDS = ("name", "topic", "topic_name")


class Denied(NamedTuple):
    """An element of a request that does not reach the handler."""

    element: Any
    code: ErrorCode


@dataclass(slots=True)
class GuardedCall:
    """One request on its way to its handler."""

    request: Any
    context: RequestContext
    route: Route
    access: Access
    view: ClusterView
    turn: RequestTurn
    has_refreshed: bool = False  # the view, for an unknown id

    @property
    def answer_class(self) -> type[Any]:
        """The response's class in the version of the request: a refusal has its fields only."""
        return load_response_schema(self.context.api_key, self.context.api_version)

    async def go_on(self, request: Any = None) -> Any:
        """Return the handler's answer to the request, or to the allowed part of it."""
        return await self.route.handle(request or self.request, self.context)

    # -- decisions --

    def needed(self, resource_type: ResourceType) -> AclOperation:
        """Return the operation that the API needs on resources of the type, by ``OPERATIONS``."""
        return operation_needed(self.context.api_key, resource_type)

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do the operation with the resource."""
        return self.access.may(self.context.session, operation, resource_type, name)

    def may_call(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may do what the API needs with the resource."""
        return self.may(self.needed(resource_type), resource_type, name)

    def sees(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether the client may see the resource in a list."""
        return self.access.sees(self.context.session, AclOperation.DESCRIBE, resource_type, name)

    def may_to_cluster(self, operation: AclOperation) -> bool:
        """Return whether the client may do the operation with the cluster."""
        return self.access.may_to_cluster(self.context.session, operation)

    def has_right_to_cluster(self, operation: AclOperation) -> bool:
        """Return the decision of the ACLs, which a dry run does not change."""
        return self.access.has_right_to_cluster(self.context.session, operation)

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the bit field of the operations that the client may do."""
        return self.access.operations(self.context.session, resource_type, name)

    async def name_of(self, topic: Any) -> str | None:
        """Return the name of a topic of a message, ``None`` if there is none with its id.

        A handler must not know an id that its guard did not, so the newest image is read for an
        unknown one. Only once for a request: clients can make up any number of ids.
        """
        for field in _TOPIC_FIELDS:
            name: str | None = getattr(topic, field, None)
            if name is not None:
                return name
        known = self.view.image.topic_names.get(topic.topic_id)
        if known is None and not self.has_refreshed:
            self.has_refreshed = True
            with suppress(StoreUnavailable):
                known = (await self.view.refresh()).topic_names.get(topic.topic_id)
        return known

    async def topics_by(
        self, operation: AclOperation, topics: Iterable[Any]
    ) -> tuple[tuple[Any, ...], list[Denied]]:
        """Return the topics with which the client may do the operation, and the others."""
        allowed: list[Any] = []
        denied: list[Denied] = []
        async for topic in self.turn.each(topics):
            name = await self.name_of(topic)
            if name is None:
                denied.append(Denied(topic, ErrorCode.unknown_topic_id))
            elif self.may(operation, ResourceType.TOPIC, name):
                allowed.append(topic)
            else:
                denied.append(Denied(topic, REFUSAL_CODES[ResourceType.TOPIC]))
        return tuple(allowed), denied

    async def visible(self, topics: Iterable[Any]) -> tuple[Any, ...]:
        """Return the topics of an answer that the client may see."""
        return tuple(
            [
                topic
                async for topic in self.turn.each(topics)
                if (name := await self.name_of(topic)) is not None
                and self.sees(ResourceType.TOPIC, name)
            ]
        )

    async def names_by(
        self, operation: AclOperation, resource_type: ResourceType, names: Iterable[str]
    ) -> tuple[tuple[str, ...], list[str]]:
        """Return the names of resources that the client may use so, and the others, each once."""
        allowed: list[str] = []
        denied: dict[str, None] = {}
        async for name in self.turn.each(names):
            if self.may(operation, resource_type, name):
                allowed.append(name)
            else:
                denied[name] = None
        return tuple(allowed), list(denied)

    # -- answers --

    def refuse(self, resource_type: ResourceType, **values: object) -> Any:
        """Return an answer that has the error of a whole request."""
        code = REFUSAL_CODES[resource_type]
        return refusal(self.answer_class, error_code=code, **values)

    async def refuse_each(
        self, resource_type: ResourceType, elements: Iterable[Any], field: str
    ) -> Any:
        """Return an answer that has the error in each element of an array."""
        code = REFUSAL_CODES[resource_type]
        added = await self.refused((Denied(one, code) for one in elements), field)
        return refusal(self.answer_class, **{field: added})

    async def refused(
        self, denied: Iterable[Denied], field: str, others: Mapping[str, object] = NOTHING
    ) -> tuple[Any, ...]:
        """Return the answer's elements for refused ones of the request."""
        return await self.refused_as(element_class(self.answer_class, field), denied, others)

    async def refused_as(
        self,
        answer_class: type[Any],
        denied: Iterable[Denied],
        others: Mapping[str, object] = NOTHING,
    ) -> tuple[Any, ...]:
        """Return refused elements of this class."""
        turn = self.turn
        return tuple(
            [
                await refused(answer_class, one.element, one.code, turn, others)
                async for one in turn.each(denied)
            ]
        )

    async def refused_names(
        self, names: Iterable[str], resource_type: ResourceType, field: str, key: str, **values: Any
    ) -> tuple[Any, ...]:
        """Return the answer's elements for refused names, which are in the elements' ``key``."""
        inner, code = element_class(self.answer_class, field), REFUSAL_CODES[resource_type]
        return tuple(
            [
                refusal(inner, error_code=code, **{key: name}, **values)
                async for name in self.turn.each(names)
            ]
        )

    async def go_on_with(
        self, allowed: tuple[Any, ...], denied: list[Denied], *, asked: str, answered: str
    ) -> Any:
        """Return the handler's answer to the allowed elements, with the refused ones behind them.

        ``asked`` is the request's array, ``answered`` the answer's. If nothing is allowed, the
        handler is not asked.
        """
        if not denied:
            return await self.go_on()
        added = await self.refused(denied, answered)
        if not allowed:
            return refusal(self.answer_class, **{answered: added})
        answer = await self.go_on(dataclasses.replace(self.request, **{asked: allowed}))
        return dataclasses.replace(answer, **{answered: (*getattr(answer, answered), *added)})


Guard = Callable[[GuardedCall], Awaitable[Any]]
"""Answers a call, most often by ``go_on``."""


async def to_cluster(call: GuardedCall) -> Any:
    """Guard an API that needs an operation on the cluster for everything."""
    if call.may_call(ResourceType.CLUSTER, CLUSTER_NAME):
        return await call.go_on()
    return call.refuse(ResourceType.CLUSTER)


def each_to_cluster(*, asked: str, answered: str) -> Guard:
    """Return the guard of such an API whose answer has errors for each element only."""

    async def guard(call: GuardedCall) -> Any:
        if call.may_call(ResourceType.CLUSTER, CLUSTER_NAME):
            return await call.go_on()
        elements = getattr(call.request, asked)
        return await call.refuse_each(ResourceType.CLUSTER, elements, answered)

    return guard


def each_topic(*, asked: str = "topics", answered: str = "topics") -> Guard:
    """Return the guard of an API that needs an operation on each of its topics."""

    async def guard(call: GuardedCall) -> Any:
        operation = call.needed(ResourceType.TOPIC)
        allowed, denied = await call.topics_by(operation, getattr(call.request, asked))
        return await call.go_on_with(allowed, denied, asked=asked, answered=answered)

    return guard


async def unguarded(call: GuardedCall) -> Any:
    """Let everyone call the API, or leave the decision to its handler."""
    return await call.go_on()
