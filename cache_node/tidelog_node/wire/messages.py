"""Control-plane messages of the server: any version in, the newest handled, any version out.

A handler takes the newest request class of its route and returns the newest response
class. Where a newer version dropped or reshaped fields, the API has several routes.
"""

from __future__ import annotations

from kio.index import load_request_schema, load_response_schema
from kio.static.protocol import Entity
from tidelog_core.wire_messages import build, lift, read_message, write_message

__all__ = ["build", "lift", "read_request", "write_response"]


def read_request(api_key: int, version: int, data: memoryview, position: int) -> Entity:
    """Return the request body that starts at ``position``, in its own version's class.

    Raises whatever kio raises on malformed bytes; the caller closes the connection.
    """
    return read_message(load_request_schema(api_key, version), data, position)


def write_response(api_key: int, version: int, response: object) -> bytes:
    """Return the encoded response body; ``response`` may be of a newer version's class."""
    return write_message(load_response_schema(api_key, version), response)
