"""The rights of clients by the ACLs and roles of one image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.security.acls import Acls
from tidelog_core.metadata.security.roles import Roles
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.acl_set import AclSet
from tidelog_core.security.authorization import DENIED_BY_DEFAULT, Authorizer, Client, Decision

# The operations on protected topics that no client may do, even with the right.
OF_NODES_ALONE = (AclOperation.WRITE, AclOperation.DELETE)
_NO_ACLS, _NOBODY_MORE = AclSet(), Authorizer()


class Rights(NamedTuple):
    """Decides for clients.

    If an ACL or a role cannot be read, and never could be since the process started, nobody knows
    whom it denies what: until it can, only super users may do anything.
    """

    authorizer: Authorizer
    acls: Acls
    roles: Roles
    protected: frozenset[str] = frozenset()  # topics

    def of_image(self, image: ClusterImage) -> Rights:
        """Return the rights by the ACLs and roles of an image: the same ones if they are."""
        if image.acls is self.acls and image.roles is self.roles:
            return self
        return self._replace(acls=image.acls, roles=image.roles)

    def client(self, principals: Iterable[str], host: str) -> Client:
        """Return a client with its roles. ``principals`` are its user, then its groups."""
        return Client(self.roles.index.principals(tuple(principals)), host)

    def decide(
        self, client: Client, operation: AclOperation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Return whether the client may do the operation with the resource."""
        if self.protects(operation, resource_type, name):
            return DENIED_BY_DEFAULT
        authorizer, acls = self.rules(client)
        return authorizer.decide(acls, client, operation, resource_type, name)

    def protects(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether no client may do the operation with the resource."""
        is_own = operation in OF_NODES_ALONE and resource_type is ResourceType.TOPIC
        return is_own and name in self.protected

    def rules(self, client: Client) -> tuple[Authorizer, AclSet]:
        """Return the authorizer and the ACLs that decide for the client."""
        is_unknown = bool(self.acls.unknown or self.roles.unknown)
        if is_unknown and not self.authorizer.is_super_user(client):
            return _NOBODY_MORE, _NO_ACLS
        return self.authorizer, self.acls.index
