"""Who calls the registry, and what the ACLs let the caller do.

The registry has the security of one listener for clients. If clients log in there, a caller sends
the same name and password by HTTP's Basic authentication; if they have certificates, the
certificate says who calls. ``schema_registry.api.rights`` says which ACLs count.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from tidelog_core.errors import AuthenticationFailed
from tidelog_core.model import USER_KIND, Principal
from tidelog_core.schema_registry.api.calls import AllPermissions, Permissions, Right
from tidelog_core.schema_registry.api.rights import of_cluster, of_subject
from tidelog_core.schemas.refusals import RegistryRefusal
from tidelog_core.security.acl import AclOperation, ResourceType
from tidelog_core.security.plain import PlainLogin

from tidelog_node.answers import CloseConnection
from tidelog_node.authentication.authentication import Logins
from tidelog_node.authentication.password_checks import PasswordChecks
from tidelog_node.authorization.access import Access
from tidelog_node.requests.session import Session
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listener

BASIC = "basic"
HEADER_CHARACTERS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class RequestOfCaller:
    """The parts of a request that identify its caller."""

    host: str
    port: int
    authorization: str = ""  # the header
    certificate: bytes | None = None  # DER


@dataclass(frozen=True, slots=True)
class KnownCaller(AllPermissions):
    """A caller whose identity is known. It may do everything."""

    session: Session


class CallerDesk:
    """Finds out who calls. For the node's event loop."""

    def __init__(
        self,
        listener: Listener,
        tls: ListenerTls | None,
        *,
        passwords: PasswordChecks,
        access: Access | None,
        logins: Logins,
    ) -> None:
        """``tls`` is ``None`` if no listener has TLS, ``access`` if the node has no authorizer."""
        self._listener = listener
        self._tls = tls
        self._passwords = passwords
        self._access = access
        self._logins = logins

    async def admit(self, request: RequestOfCaller) -> Permissions:
        """Return what the caller may do. Raises ``RegistryRefusal`` if it is not who it says."""
        session = Session(request.host, request.port, self._listener.name)
        if self._listener.protocol.has_sasl:
            login = parse_basic(request.authorization)
            try:
                await self._passwords.check(request.host, login)
            except AuthenticationFailed as error:
                self._logins.refused(session, str(error))
                raise unauthorized() from None
            except CloseConnection as error:
                raise RegistryRefusal(503, f"{error}: try again") from None
            session.become(Principal(USER_KIND, login.user))
        elif self._listener.protocol.has_tls:
            assert self._tls is not None, "it is made for each such listener"
            try:
                session.become(self._tls.principal(self._listener.name, request.certificate))
            except PermissionError as error:
                raise RegistryRefusal(40301, str(error)) from None
        if self._access is None:
            return KnownCaller(session)
        return _AclPermissions(session, self._access)


def unauthorized() -> RegistryRefusal:
    """Return the refusal of a caller who is not known."""
    return RegistryRefusal(401, "Unauthorized")


def parse_basic(header: str) -> PlainLogin:
    """Return the name and password in the header. Raises ``RegistryRefusal``. Source: RFC 7617."""
    scheme, _, encoded = header.strip().partition(" ")
    if scheme.lower() != BASIC or len(encoded) > HEADER_CHARACTERS_MAX:
        raise unauthorized()
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        raise unauthorized() from None
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\0" in text:
        raise unauthorized()
    return PlainLogin(user, password)


@dataclass(frozen=True, slots=True)
class _AclPermissions(KnownCaller):
    """The rights of one caller, by the ACLs."""

    access: Access

    def may(self, right: Right, subject: str) -> bool:
        """Return whether the caller may do it to the subject; "": to everything."""
        return self._has(right, subject) or self.access.may(*self._asked(right, subject))

    def sees(self, right: Right, subject: str) -> bool:
        """As ``may``, for entries of a list: those that are left out are not logged as denied."""
        return self._has(right, subject) or self.access.sees(*self._asked(right, subject))

    def _has(self, right: Right, subject: str) -> bool:
        """Whether a right to the cluster counts, so that the topic's need not."""
        operation = of_cluster(right).operation
        return bool(subject) and self.access.has_right_to_cluster(self.session, operation)

    def _asked(self, right: Right, subject: str) -> tuple[Session, AclOperation, ResourceType, str]:
        return self.session, *of_subject(right, subject)
