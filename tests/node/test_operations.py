"""Every API that a node answers has an entry in the table of operations."""

from __future__ import annotations

from tidelog_core.message_schemas import api_name
from tidelog_core.security.operations import OPERATIONS
from tidelog_node.authorization.guarded_routes import GUARDS

from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request

WITHOUT_RECEIVER = {71, 72}  # A node without a receiver of client metrics does not show these.


def test_the_table_of_operations_has_every_api_of_a_node(node: NodeProcess) -> None:
    """A route without an entry would be open to everyone, or closed to all."""
    with WireClient(node.port) as client:
        served = {int(api.api_key) for api in client.call(api_versions_request()).api_keys}
    assert served == OPERATIONS.keys() - WITHOUT_RECEIVER


def test_every_api_has_a_guard_or_asks_for_itself() -> None:
    hot = {0, 1, 78}  # Produce, Fetch and ShareFetch
    assert GUARDS.keys() | hot == OPERATIONS.keys()
    assert not GUARDS.keys() & hot


def test_names_are_those_of_the_protocol() -> None:
    for api_key, api in OPERATIONS.items():
        assert api.name.lower() == api_name(api_key).replace("_", ""), api_key
