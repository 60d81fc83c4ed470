"""A client without any ACL: every API and version refuses it in an answer, and shows it nothing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tidelog_core.message_schemas import load_request_schema
from tidelog_core.security.operations import OPERATIONS, REFUSAL_CODES

from tests.support.acl_rules import CLIENT, WITH_ACLS, leave_to_admin
from tests.support.kafka_messages import SERVED_KEYS
from tests.support.message_bytes import joined, random_message
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

SECRET = "secret"
REFUSED = {code.name for code in REFUSAL_CODES.values()}
# Of what is not there, or was not tried because of something else.
NOT_TOLD = {"none", 0, "unknown_topic_id", "operation_not_attempted"}
OF_STRANGERS = {"delegation_token_request_not_allowed"}  # ACLs count once a client is known
OTHER_ERRORS = {
    "create_delegation_token": OF_STRANGERS,
    "describe_delegation_token": OF_STRANGERS,
    "describe_cluster": {"unsupported_endpoint_type"},
    "metadata": {"invalid_request"},  # of versions that take no id
}
WITHOUT_NEEDS = {key for key, api in OPERATIONS.items() if not api.needs}
# They show less, and need not have an error.
SHOW_LESS = {"list_groups", "list_transactions", "describe_cluster", "describe_log_dirs"}
HOT = {"produce", "fetch"}  # with any numbers they have no answer, or name sessions
SEEDS = range(4)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The administrator of a node that leaves nothing to others."""
    config = WITH_ACLS | {"client.metrics.otlp.endpoint": "http://127.0.0.1:9"}
    with NodeProcess(tmp_path_factory.mktemp("refused") / "node", config=config) as node:
        peer = Peer("tidelog", node.port)
        peer.create_topic(SECRET)
        leave_to_admin(peer)
        yield peer
        peer.close()


@pytest.fixture(scope="module")
def supported(admin: Peer) -> dict[int, tuple[int, int]]:
    """The versions that the node serves, by API."""
    answer = admin.call("api_versions", 3, client_software_name="t", client_software_version="1")
    return {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}


def test_every_api_is_tried(supported: dict[int, tuple[int, int]]) -> None:
    assert supported.keys() == set(SERVED_KEYS.values())


@pytest.mark.parametrize("api", sorted(SERVED_KEYS.keys() - HOT))
def test_every_version_refuses_in_an_answer(
    api: str,
    admin: Peer,
    supported: dict[int, tuple[int, int]],
    request: pytest.FixtureRequest,
) -> None:
    """``tests/kafka`` has the hot ones."""
    api_key = SERVED_KEYS[api]
    if api_key in WITHOUT_NEEDS:
        pytest.skip("the API needs no permission")
    client = Peer("tidelog", admin.port, address=CLIENT)
    request.addfinalizer(client.close)
    lowest, highest = supported[api_key]
    for version in range(lowest, highest + 1):
        found: set[str] = set()
        for seed in SEEDS:
            body = message(api, version, seed)
            answer = client.call_raw(api, version, body)
            assert isinstance(answer, dict), f"version {version}, seed {seed}: {answer}"
            values = set(shown(answer))
            assert admin.topic_ids[SECRET] not in values
            found |= set(codes(answer))
        assert found <= REFUSED | NOT_TOLD | OTHER_ERRORS.get(api, set()), f"version {version}"
        assert found & (REFUSED | OF_STRANGERS) or api in SHOW_LESS, f"version {version}"


def message(api: str, version: int, seed: int) -> bytes:
    """Return a request that names the topic, and groups and transactions of the same name."""
    schema = load_request_schema(SERVED_KEYS[api], version)
    pieces = random_message(schema, Random(seed), texts=(SECRET,), numbers=(1,), nulls=0)
    return joined(pieces)


def shown(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from shown(inner)
    elif isinstance(value, list):
        for one in value:
            yield from shown(one)
    else:
        yield value


def codes(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.endswith("error_code"):
                yield inner
            yield from codes(inner)
    elif isinstance(value, list):
        for one in value:
            yield from codes(one)
