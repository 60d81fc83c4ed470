"""Finds the classes of messages: kio's for Kafka's APIs, and those of Tidelog's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from kio import index
from kio.schema.index import api_key_map

from tidelog_core.quota_messages import (
    DESCRIBE_QUOTA_USE_KEY,
    DescribeQuotaUseRequest,
    DescribeQuotaUseResponse,
)
from tidelog_core.role_messages import (
    ALTER_ROLES_KEY,
    DESCRIBE_ROLES_KEY,
    AlterRolesRequest,
    AlterRolesResponse,
    DescribeRolesRequest,
    DescribeRolesResponse,
)

# By the API's key: its name, and the classes of its only version, 0.
OWN_APIS: Mapping[int, tuple[str, type[Any], type[Any]]] = {
    DESCRIBE_ROLES_KEY: ("describe_roles", DescribeRolesRequest, DescribeRolesResponse),
    ALTER_ROLES_KEY: ("alter_roles", AlterRolesRequest, AlterRolesResponse),
    DESCRIBE_QUOTA_USE_KEY: (
        "describe_quota_use",
        DescribeQuotaUseRequest,
        DescribeQuotaUseResponse,
    ),
}


def api_name(api_key: int) -> str:
    """Return an API's name, as in ``list_offsets``."""
    own = OWN_APIS.get(api_key)
    return api_key_map[api_key] if own is None else own[0]


# kio resolves the name of a module and of its class at each call, which took a tenth of a
# connection's first request. Only what exists is kept, so there are as many as kio has classes.
@cache
def load_request_schema(api_key: int, version: int) -> type[Any]:
    """Return the request's class."""
    own = OWN_APIS.get(api_key)
    return index.load_request_schema(api_key, version) if own is None else own[1]


@cache
def load_response_schema(api_key: int, version: int) -> type[Any]:
    """Return the response's class."""
    own = OWN_APIS.get(api_key)
    return index.load_response_schema(api_key, version) if own is None else own[2]
