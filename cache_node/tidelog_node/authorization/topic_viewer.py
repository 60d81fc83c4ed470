"""The topics that clients may describe, for decisions that are made without a request."""

from __future__ import annotations

from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.acl_set import AclSet
from tidelog_core.security.authorization import Authorizer, Client


class TopicViewer:
    """The topics that clients with the same principals may describe, by the ACLs of one time."""

    __slots__ = ("__weakref__", "_acls", "_authorizer", "_client")

    def __init__(self, authorizer: Authorizer, acls: AclSet, client: Client) -> None:
        self._authorizer = authorizer
        self._acls = acls
        self._client = client

    def sees(self, topic: str) -> bool:
        """Return whether they may describe the topic."""
        decision = self._authorizer.decide(
            self._acls, self._client, AclOperation.DESCRIBE, ResourceType.TOPIC, topic
        )
        return decision.is_allowed
