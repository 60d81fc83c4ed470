"""Generated requests, good and bad, against the document: nothing breaks, nothing is untrue.

The server is the one that people run on a laptop. Its cluster has something of everything
that a path can name, so that requests get further than «not found».
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from tidelog_functions.admin.contract import DOCUMENT

from tests.support.admin_calls import new_cluster, put_group
from tests.support.local_admin import LocalAdmin, local_admin
from tests.support.replicated_cluster import MEMORY_DIR

EXAMPLES_PER_OPERATION = 20


def without_signatures() -> dict[str, Any]:
    """Return the document as it is behind API Gateway, which has checked who calls."""
    document = json.loads(DOCUMENT.read_bytes())
    del document["security"], document["components"]["securitySchemes"]
    return document  # type: ignore[no-any-return]


# What is well formed is never 400, but may still be impossible: a topic that is there already.
STATUSES = {
    "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "413", "422"]},
    "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "413", "415"]},
}
schema = schemathesis.openapi.from_dict(
    without_signatures(), config=schemathesis.Config.from_dict({"checks": STATUSES})
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalAdmin]:
    """The API of a cluster with a topic and a group."""
    with TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else None) as folder:
        with new_cluster(Path(folder)) as api:
            api.done("POST", "/topics", {"name": "__consumer_offsets", "partition_count": 4})
            api.done("POST", "/topics", {"name": "t", "assignments": [[1, 2], [2, 1]]})
            put_group(api, "g")
        with local_admin(f"sqlite://{folder}/metadata.db", f"file://{folder}/objects") as running:
            yield running


@schema.hook
def map_path_parameters(context, path_parameters):  # type: ignore[no-untyped-def]
    """Have every other generated path name what is there."""
    there = {"topic": "t", "partition": 0, "broker_id": 1}
    if path_parameters and sum(map(ord, str(path_parameters))) % 2:
        return {name: there.get(name, value) for name, value in path_parameters.items()}
    return path_parameters


@schema.parametrize()
@settings(
    max_examples=EXAMPLES_PER_OPERATION,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_promises(case, server) -> None:  # type: ignore[no-untyped-def]
    case.call_and_validate(base_url=server.url)
