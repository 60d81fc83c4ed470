"""Decides what the requests of clients may do, by the ACLs of the newest image.

Decisions are kept for each user and host: most requests repeat the last one's topics, and a kept
decision costs a lookup. They are forgotten when any ACL or role changes, so a request is never
decided by an older image than the one that its handler sees. They are also forgotten when they take
``KEPT_BYTES_MAX``: clients can make up names, of 32 KiB each.

``Rights`` has the rules. A node that has proved its identity may do everything: its requests are
the cluster's own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from uuid import UUID
from weakref import WeakValueDictionary

from tidelog_core.errors import TidelogError, TopicAuthorizationFailed, UnknownTopicId
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.image.rights import Rights
from tidelog_core.security.acl import ANY_HOST, CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.authorization import Authorizer, Client
from tidelog_core.security.operations import SUPPORTED_OPERATIONS
from tidelog_core.security.roles import GROUP_KIND

from tidelog_node.authorization.denial_log import DenialLog
from tidelog_node.authorization.topic_viewer import TopicViewer
from tidelog_node.requests.session import NO_NODE, Session

if TYPE_CHECKING:
    from tidelog_core.model import Principal

KEPT_BYTES_MAX = 67_108_864  # of the whole node
DECISION_BYTES = 400  # of one, without its name


class Decisions:
    """The kept decisions for one user, with the same groups, on one host."""

    __slots__ = (
        "client",
        "generation",
        "others",
        "read_by_id",
        "read_by_name",
        "write_by_id",
        "write_by_name",
    )

    def __init__(self, client: Client, generation: object) -> None:
        self.client = client
        self.generation = generation  # of the ACLs and roles
        # By the topic as requests name it: by its name, and by its id.
        self.read_by_name: dict[bytes, bool] = {}
        self.read_by_id: dict[bytes, bool] = {}
        self.write_by_name: dict[bytes, bool] = {}
        self.write_by_id: dict[bytes, bool] = {}
        self.others: dict[tuple[AclOperation, ResourceType, str], bool] = {}


class Access:
    """The decisions of a node with an authorizer. For its event loop."""

    def __init__(
        self,
        authorizer: Authorizer,
        view: ClusterView,
        *,
        denials: DenialLog | None = None,
        protected: frozenset[str] = frozenset(),
    ) -> None:
        """No client can write or delete ``protected`` topics, even with the right."""
        image = view.image
        self._image: ClusterImage | None = image  # ``None``: too much is kept, forget it
        self._rights = Rights(authorizer, image.acls, image.roles, protected)
        self._denials = denials or DenialLog()
        self._view = view
        self._generation = object()
        self._kept: dict[tuple[Principal, tuple[str, ...], str], Decisions] = {}
        self._kept_bytes = 0
        self._viewers: WeakValueDictionary[Client, TopicViewer] = WeakValueDictionary()

    def may(
        self, session: Session, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether the client may do the operation with the resource."""
        if self.has_right(session, operation, resource_type, name):
            return True
        return self._deny(session, operation, resource_type, name)

    def sees(
        self, session: Session, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return as ``may``, for an entry of a list: leaving it out is not logged as a denial."""
        if self.has_right(session, operation, resource_type, name):
            return True
        is_dry_run = self._denials.is_dry_run
        return is_dry_run and self._deny(session, operation, resource_type, name)

    def may_to_cluster(self, session: Session, operation: AclOperation) -> bool:
        """Return whether the client may do the operation with the cluster."""
        return self.may(session, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_with_some(
        self, session: Session, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return whether there can be a resource of the type that the client may use so."""
        if session.node_id != NO_NODE:
            return True
        client = self._decisions_of(session).client
        authorizer, acls = self._rights.rules(client)
        is_allowed = authorizer.decide_any(acls, client, operation, resource_type)
        return is_allowed or self._deny(session, operation, resource_type, "of any name")

    def has_right(
        self, session: Session, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return the decision of the ACLs, which a dry run does not change.

        For what the client is shown of its rights, and for a right that is one of several.
        """
        if session.node_id != NO_NODE:
            return True
        decisions = self._decisions_of(session)
        key = (operation, resource_type, name)
        known = decisions.others.get(key)
        if known is None:
            known = self._decide(decisions, operation, resource_type, name)
            decisions.others[key] = known
        return known

    def has_right_to_cluster(self, session: Session, operation: AclOperation) -> bool:
        """Return the decision of the ACLs about the cluster, which a dry run does not change."""
        return self.has_right(session, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def operations(self, session: Session, resource_type: ResourceType, name: str) -> int:
        """Return the bit field of the operations that the client has the right to."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.has_right(session, operation, resource_type, name)
        )

    def read_refusal(self, session: Session, topic: bytes, *, is_id: bool) -> TidelogError | None:
        """Return the error for a client that must not read the topic, else ``None``.

        ``topic`` is its name or id, as the request has it.
        """
        decisions = self._decisions_of(session)
        kept = decisions.read_by_id if is_id else decisions.read_by_name
        known = kept.get(topic)
        if known is not None:
            return None if known else _refusal(AclOperation.READ)
        return self._topic_refusal(session, decisions, kept, AclOperation.READ, topic, is_id=is_id)

    def write_refusal(self, session: Session, topic: bytes, *, is_id: bool) -> TidelogError | None:
        """Return the error for a client that must not write the topic, else ``None``."""
        decisions = self._decisions_of(session)
        kept = decisions.write_by_id if is_id else decisions.write_by_name
        known = kept.get(topic)
        if known is not None:
            return None if known else _refusal(AclOperation.WRITE)
        return self._topic_refusal(session, decisions, kept, AclOperation.WRITE, topic, is_id=is_id)

    def viewer(self, session: Session) -> TopicViewer | None:
        """Return which topics the client may describe, ``None`` if it may describe all.

        The same object for all clients with the same principals, unless an ACL names the client's
        host, until any right changes.
        """
        if session.node_id != NO_NODE:
            return None
        client = self._decisions_of(session).client
        authorizer, acls = self._rights.rules(client)
        if self._denials.is_dry_run or authorizer.is_super_user(client):
            return None
        host = client.host if acls.names_host(client.host) else ANY_HOST
        shared = Client(client.principals, host)
        known = self._viewers.get(shared)
        if known is None:
            known = self._viewers[shared] = TopicViewer(authorizer, acls, shared)
        return known

    def protects(self, topic: str) -> bool:
        """Return whether no client may write or delete the topic."""
        return topic in self._rights.protected

    def generation(self) -> object:
        """Return an object that is another one after each change of the ACLs or roles."""
        image = self._view.image
        if image is not self._image:
            self._follow(image)
        return self._generation

    def _follow(self, image: ClusterImage) -> None:
        rights = self._rights
        has_room, self._image = self._image is not None, image
        if has_room and image.acls is rights.acls and image.roles is rights.roles:
            return
        self._rights = rights.of_image(image)
        self._generation = object()
        self._kept = {}
        self._kept_bytes = 0
        self._viewers = WeakValueDictionary()

    def _topic_refusal(
        self,
        session: Session,
        decisions: Decisions,
        kept: dict[bytes, bool],
        operation: AclOperation,
        topic: bytes,
        *,
        is_id: bool,
    ) -> TidelogError | None:
        if session.node_id != NO_NODE:
            return None
        if is_id:
            name = self._view.image.topic_names.get(UUID(bytes=bytes(topic)))
            if name is None:  # Nobody can say who may use it.
                return UnknownTopicId("there is no topic with this id")
        else:
            name = str(topic, "utf-8", "replace")
        known = self._decide(decisions, operation, ResourceType.TOPIC, name) or self._deny(
            session, operation, ResourceType.TOPIC, name
        )
        kept[bytes(topic)] = known
        return None if known else _refusal(operation)

    def _deny(
        self, session: Session, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        """Log a denial; return whether it is none, because of a dry run."""
        client = self._decisions_of(session).client
        self._denials.note(client, operation, resource_type, name)
        return self._denials.is_dry_run

    def _decisions_of(self, session: Session) -> Decisions:
        generation = self.generation()
        known = session.decisions
        if known is not None and known.generation is generation:
            return known
        key = (session.principal, session.groups, session.client_host)
        kept = self._kept.get(key)
        if kept is None:
            groups = (f"{GROUP_KIND}:{group}" for group in session.groups)
            client = self._rights.client((str(session.principal), *groups), session.client_host)
            kept = self._kept[key] = Decisions(client, generation)
            self._keep(DECISION_BYTES + sum(2 * len(one) for one in client.principals))
        session.decisions = kept
        return kept

    def _decide(
        self, decisions: Decisions, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> bool:
        self._keep(DECISION_BYTES + 2 * sys.getsizeof(name))  # as a text and as bytes
        return self._rights.decide(decisions.client, operation, resource_type, name).is_allowed

    def _keep(self, size_bytes: int) -> None:
        """Count bytes that are kept. Beyond the limit all is forgotten before the next decision."""
        self._kept_bytes += size_bytes
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._image = None


def _refusal(operation: AclOperation) -> TopicAuthorizationFailed:
    return TopicAuthorizationFailed(f"the client may not {operation.name.lower()} the topic")
