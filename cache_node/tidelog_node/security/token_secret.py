"""Reads the secret key of delegation tokens."""

from __future__ import annotations

from concurrent.futures import Executor

from tidelog_core.config import NodeConfig
from tidelog_core.errors import InvalidConfig
from tidelog_core.security.delegation_tokens import TokenSecret

from tidelog_node.security.pem_reader import PemReader

_KEY, _LOCATION = "delegation.token.secret.key", "delegation.token.secret.key.location"


async def load_token_secret(config: NodeConfig, executor: Executor) -> TokenSecret | None:
    """Return the key, ``None`` if the node has none and so no tokens.

    ``executor`` reads the file. Raises ``InvalidConfig``, without any of the key.
    """
    key, location = config.delegation_token_secret_key, config.delegation_token_secret_key_location
    if key and location:
        raise InvalidConfig([f"set {_KEY} or {_LOCATION}, not both"])
    if location:
        key = (await PemReader(executor).read(location)).strip()
        if not key:
            raise InvalidConfig([f"there is no {_KEY} in {location}"])
    return TokenSecret(key) if key else None
