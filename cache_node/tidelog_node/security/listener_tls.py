"""The TLS contexts of a node's listeners, replaced when their keys or certificates change.

A connection keeps the context that accepted it, so a replacement closes none. ``run`` and the
listeners share one reference for each listener, which the event loop reads and replaces between
its calls.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from tidelog_core.config import ListenerConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.model import ANONYMOUS, USER_KIND, Principal

from tidelog_node.security.distinguished_name import distinguished_name
from tidelog_node.security.listeners import Listener
from tidelog_node.security.pem_reader import PemReader
from tidelog_node.security.principal_mapping import PrincipalMapping, parse_principal_mapping
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context, expiry

logger = logging.getLogger(__name__)

EXPIRY_WARNING = datetime.timedelta(days=14)
EXPIRY_LOG_SECONDS = 86_400.0


@dataclass(slots=True)
class _Tls:
    """The current context of one listener, and its material."""

    material: TlsMaterial
    context: ssl.SSLContext
    expires: datetime.datetime
    problem: str = ""  # the reason why newer material could not replace it
    warned_at: float = float("-inf")  # of the certificate's expiry


class ListenerTls:
    """Has the contexts of all TLS listeners. For the node's event loop."""

    def __init__(self, listeners: Sequence[Listener], executor: Executor) -> None:
        """``executor`` reads files and makes contexts: decrypting a key may take long."""
        self._executor = executor
        self._reader = PemReader(executor)
        self._configs = {one.name: one.config for one in listeners if one.protocol.has_tls}
        self._mappings: dict[str, PrincipalMapping] = {}
        self._tls: dict[str, _Tls] = {}

    async def load(self) -> None:
        """Make the first context of every listener. Raises ``InvalidConfig`` with every problem."""
        problems: list[str] = []
        for name, config in self._configs.items():
            try:
                self._mappings[name] = parse_principal_mapping(config.ssl_principal_mapping_rules)
                material = await self._read(config)
                self._tls[name] = await self._build(config, material)
            except InvalidConfig as error:
                problems += (f"listener {name}: {problem}" for problem in error.problems)
            else:
                self._warn_of_expiry(name)
        if problems:
            raise InvalidConfig(problems)

    def context(self, listener: str) -> ssl.SSLContext | None:
        """Return the context for the next connection; ``None`` if the listener has no TLS."""
        tls = self._tls.get(listener)
        return None if tls is None else tls.context

    def principal(self, listener: str, certificate: bytes | None) -> Principal:
        """Return the user that a client's certificate (DER) belongs to.

        Anonymous without a certificate. Raises ``PermissionError`` if no rule applies.
        """
        if certificate is None:
            return ANONYMOUS
        try:
            name = distinguished_name(certificate)
        except ValueError as error:
            raise PermissionError(f"the certificate's subject cannot be read: {error}") from None
        user = self._mappings[listener].principal_of(name)
        if user is None:
            raise PermissionError(f"no rule of ssl.principal.mapping.rules applies to {name}")
        return Principal(USER_KIND, user)

    async def run(self, interval_seconds: float) -> None:
        """Read keys and certificates at the interval; replace the contexts of changed ones."""
        while True:
            await asyncio.sleep(interval_seconds)
            for name in self._configs:
                await self._renew(name)
                self._warn_of_expiry(name)

    # -- inside --

    async def _renew(self, name: str) -> None:
        """Replace the context if its material has changed. A failure is logged once."""
        config, tls = self._configs[name], self._tls[name]
        try:
            material = await self._read(config)
            if material == tls.material:
                tls.problem = ""
                return
            renewed = await self._build(config, material)
        except InvalidConfig as error:
            if tls.problem != str(error):
                tls.problem = str(error)
                logger.error(
                    "certificate not replaced, the listener keeps the old one",
                    extra={"listener": name, "reason": tls.problem},
                )
            return
        self._tls[name] = renewed
        logger.info(
            "certificate replaced",
            extra={"listener": name, "expires": renewed.expires.isoformat()},
        )

    async def _build(self, config: ListenerConfig, material: TlsMaterial) -> _Tls:
        loop = asyncio.get_running_loop()
        context = await loop.run_in_executor(self._executor, build_tls_context, config, material)
        return _Tls(material, context, expiry(material))

    async def _read(self, config: ListenerConfig) -> TlsMaterial:
        problems = []
        key, chain = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
        trusted = config.ssl_truststore_certificates
        if config.ssl_keystore_location and (key or chain):
            problems.append("give ssl.keystore.location or ssl.keystore.key with its chain")
        if config.ssl_truststore_location and trusted:
            problems.append("give ssl.truststore.location or ssl.truststore.certificates")
        if not config.ssl_keystore_location and not (key and chain):
            problems.append(
                "TLS needs ssl.keystore.location, a PEM file with the private key and its"
                " certificates, or ssl.keystore.key and ssl.keystore.certificate.chain"
            )
        if problems:
            raise InvalidConfig(problems)
        if config.ssl_keystore_location:
            key = chain = await self._reader.read(config.ssl_keystore_location)
        if config.ssl_truststore_location:
            trusted = await self._reader.read(config.ssl_truststore_location)
        return TlsMaterial(key, chain, config.ssl_key_password, trusted)

    def _warn_of_expiry(self, name: str) -> None:
        tls, now = self._tls[name], asyncio.get_running_loop().time()
        left = tls.expires - datetime.datetime.now(datetime.UTC)
        if left < EXPIRY_WARNING and now - tls.warned_at >= EXPIRY_LOG_SECONDS:
            tls.warned_at = now
            logger.warning(
                "certificate expires soon"
                if left > datetime.timedelta()
                else "certificate expired",
                extra={"listener": name, "expires": tls.expires.isoformat()},
            )
