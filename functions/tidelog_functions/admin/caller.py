"""The caller of a request, and its rights by the cluster's ACLs.

Without an authorizer (``authorizer.class.name`` in the function's environment) everyone who reaches
the API may do everything, and IAM alone decides who does.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from tidelog_core.audit.events import AUDIT_TOPIC
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.rights import Rights
from tidelog_core.model import ANONYMOUS, USER_KIND
from tidelog_core.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog_core.security.authorization import Authorizer, Client
from tidelog_core.setting_values.authorizer import parse_super_users

logger = logging.getLogger(__name__)

# arn:aws:sts::<account>:assumed-role/<role>/<session>
_ASSUMED_ROLE = re.compile(r"arn:([^:]+):sts::([0-9]*):assumed-role/([^/]+)/.*", re.DOTALL)


def principal_of(arn: str) -> str:
    """Return the principal of an IAM identity: ``User:`` and its ARN.

    An assumed role is the role, without the session's name: a caller that may assume a role chooses
    that name.
    """
    role = _ASSUMED_ROLE.fullmatch(arn)
    if role is not None:
        partition, account, name = role.groups()
        arn = f"arn:{partition}:iam::{account}:role/{name}"
    return f"{USER_KIND}:{arn}"


class AdminAuthorizer:
    """The rules of the nodes' settings, with the newest ACLs and roles."""

    def __init__(self, config: NodeConfig, image: ClusterImage) -> None:
        authorizer = Authorizer(
            parse_super_users(config.super_users),
            allows_without_acls=config.allow_everyone_if_no_acl_found,
        )
        protected = frozenset({AUDIT_TOPIC}) if config.audit_enable else frozenset[str]()
        self._rights = Rights(authorizer, image.acls, image.roles, protected)
        self._is_dry_run = config.authorizer_dry_run

    def caller(self, image: ClusterImage, principal: str, host: str) -> Caller:
        """Return the caller with its rights in the image."""
        self._rights = self._rights.of_image(image)
        client = self._rights.client([principal], host)
        return Caller(client, self._rights, is_dry_run=self._is_dry_run)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    client: Client
    rights: Rights | None = None  # None: there is no authorizer, and the caller may do everything
    is_dry_run: bool = False  # nothing is denied, but logged

    @property
    def name(self) -> str:
        """The caller's principal."""
        return self.client.principals[0]

    def has_right(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return the decision of the ACLs, which a dry run does not change."""
        if self.rights is None:
            return True
        return self.rights.decide(self.client, operation, resource_type, name).is_allowed

    def protects(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Return whether no caller may do the operation with the resource."""
        return self.rights is not None and self.rights.protects(operation, resource_type, name)

    def sees(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether the caller may see the resource in a list."""
        return self.is_dry_run or self.has_right(AclOperation.DESCRIBE, resource_type, name)

    def sees_all(self) -> bool:
        """Return whether the caller may see all groups, without rights to each of them."""
        return self.has_right(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)

    def deny(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Log a denial; return whether it is one, and not only in a dry run."""
        logger.warning(
            "would be denied" if self.is_dry_run else "denied",
            extra={
                "principal": self.name,
                "host": self.client.host,
                "operation": operation.name,
                "resource": f"{resource_type.name} {name}",
            },
        )
        return not self.is_dry_run


NOBODY = Caller(Client((str(ANONYMOUS),), ""))
