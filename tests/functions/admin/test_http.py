"""What is wrong with a request before anything is asked of the cluster."""

from __future__ import annotations

import base64
import json

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_functions.admin.cluster import parse_admin_settings
from tidelog_functions.admin.http import BODY_SIZE_BYTES_MAX

from tests.support.admin_calls import Api, an_event


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "text",
        {},
        {"version": "1.0", "path": "/topics", "httpMethod": "GET"},
        {"Records": []},
        {"version": "2.0", "requestContext": "x"},
        {"version": "2.0", "requestContext": {"http": {"method": 1}}},
        {"version": "2.0", "headers": [], "requestContext": {"http": {}}},
        {**an_event("POST", "/topics"), "body": {"name": "t"}},
        {**an_event("GET", "/topics"), "rawPath": None},
    ],
)
def test_events_of_another_kind_are_refused_with_400(api: Api, event: object) -> None:
    assert api.send(event).problem == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "authorizer",
    [None, {}, {"iam": None}, {"iam": {}}, {"iam": {"userArn": ""}}, {"jwt": {"claims": {}}}, "x"],
)
def test_without_an_iam_identity_nothing_is_reported(api: Api, authorizer: object) -> None:
    event = an_event("GET", "/topics")
    event["requestContext"]["authorizer"] = authorizer
    assert api.send(event).problem == (401, "CLUSTER_AUTHORIZATION_FAILED")
    event["rawPath"] = "/nothing-here"
    assert api.send(event).status == 401


def test_an_unknown_path_is_404_and_points_at_the_document(api: Api) -> None:
    for path in ("/", "", "/topic", "/topics/", "/topics//configs", "/topics/t/x/y", "/groups/g"):
        answer = api("GET", path)
        assert answer.problem == (404, "INVALID_REQUEST")
        assert "/openapi.json" in answer.body["detail"]
    assert api("GET", "/openapi.json").body["openapi"] == "3.1.0"


def test_an_unknown_method_is_405_and_names_those_that_are_allowed(api: Api) -> None:
    for method in ("PUT", "HEAD", "OPTIONS", "get", ""):
        answer = api(method, "/topics")
        assert answer.problem == (405, "INVALID_REQUEST")
        assert answer.headers["allow"] == "GET, POST"


def test_a_stage_in_the_path_is_not_part_of_it(api: Api) -> None:
    event = an_event("GET", "/prod/topics")
    event["requestContext"]["stage"] = "prod"
    assert api.send(event).status == 200
    event["rawPath"] = "/production/topics"
    assert api.send(event).status == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "needs a body"),
        ("{", "not JSON"),
        ("[]", "body must be an object"),
        ('{"name": "a", "name": "b"}', "'name' is given more than once"),
        ('{"name": NaN}', "NaN is not a JSON number"),
        ('{"name": 5}', "body.name must be a string, not 5"),
        ('{"name": "a", "colour": 1}', "unknown field 'colour'; known are name, partition_count"),
        ("{}", "body lacks 'name'"),
        ('{"name": "a", "partition_count": 1.5}', "partition_count must be a whole number"),
        ('{"name": "a", "partition_count": true}', "partition_count must be a whole number"),
        ('{"name": "a", "partition_count": 1e300}', "must be from -1 to 2147483647"),
        ('{"name": "a", "partition_count": 3000000000}', "must be from -1 to 2147483647"),
        ('{"name": "a", "assignments": [[1], "x"]}', r"body.assignments\[1\] must be a list"),
        ('{"name": "a", "configs": {"retention.ms": 5}}', "configs.retention.ms must be a string"),
        ('{"name": "a", "validate_only": "false"}', "validate_only must be true or false"),
        ('{"name": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "not JSON"),
        ('{"name": ' + "9" * 5_000 + "}", "not JSON"),
    ],
)
def test_a_wrong_body_is_400_and_says_what_is_wrong(api: Api, body: str, says: str) -> None:
    event = {**an_event("POST", "/topics"), "body": body}
    answer = api.send(event)
    assert answer.problem == (400, "INVALID_REQUEST")
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(answer.body["detail"])


def test_every_problem_of_a_body_is_told_at_once(api: Api) -> None:
    detail = api("POST", "/topics", {"name": 1, "colour": 2}).body["detail"]
    assert "body.name" in detail
    assert "colour" in detail


def test_a_body_in_base64_is_read_and_one_that_is_none_refused(api: Api) -> None:
    event = an_event("POST", "/topics")
    event["isBase64Encoded"] = True
    event["body"] = base64.b64encode(json.dumps({"name": "t"}).encode()).decode()
    assert api.send(event).status == 201
    for wrong in ("%%%", "YQ", base64.b64encode(b"\xff{}").decode(), "é"):
        event["body"] = wrong
        assert api.send(event).problem == (400, "INVALID_REQUEST")


def test_a_body_that_is_too_large_is_413(api: Api) -> None:
    event = an_event("POST", "/topics")
    event["body"] = " " * BODY_SIZE_BYTES_MAX + "{}"
    assert api.send(event).problem == (413, "INVALID_REQUEST")


def test_a_body_of_another_type_is_415(api: Api) -> None:
    event = an_event("POST", "/topics", {"name": "t"})
    event["headers"] = {"Content-Type": "text/plain"}
    assert api.send(event).problem == (415, "INVALID_REQUEST")
    event["headers"] = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert api.send(event).status == 201


def test_a_body_where_none_belongs_is_refused(api: Api) -> None:
    assert api("GET", "/topics", {}).problem == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("limit=0", "limit must be from 1 to 1000, not 0"),
        ("limit=-5", "limit must be from 1 to 1000"),
        ("limit=ten", "limit must be a whole number"),
        ("limit=", "limit must be a whole number"),
        ("limit=" + "9" * 400, "limit must be a whole number"),
        ("limit=1&limit=2", "'limit' is given more than once"),
        ("colour=1", "unknown query parameter 'colour'; known are limit, after, internal"),
        ("internal=yes", "internal must be true or false"),
        ("after=%ff", "the query cannot be read"),
        ("&".join(f"a{n}=1" for n in range(30)), "the query cannot be read"),
    ],
)
def test_a_wrong_query_is_400_and_says_what_is_wrong(api: Api, query: str, says: str) -> None:
    answer = api.send({**an_event("GET", "/topics"), "rawQueryString": query})
    assert answer.problem == (400, "INVALID_REQUEST")
    assert says in answer.body["detail"]


def test_a_required_parameter_is_asked_for(api: Api) -> None:
    answer = api("GET", "/group")
    assert answer.problem == (400, "INVALID_REQUEST")
    assert "'group_id' is required" in answer.body["detail"]
    assert api("GET", "/group", group_id="").problem == (400, "INVALID_REQUEST")


def test_a_path_that_is_no_number_where_one_belongs_is_400(api: Api) -> None:
    for wrong in ("x", "-1", "1.0", "99999999999", "\ud800", "²"):
        assert api("GET", f"/topics/t/partitions/{wrong}").problem == (400, "INVALID_REQUEST")


def test_a_request_that_takes_too_long_is_503_and_its_outcome_unknown(api: Api) -> None:
    answer = api.send(an_event("POST", "/topics", {"name": "t"}), seconds_max=0)
    assert answer.problem == (503, "REQUEST_TIMED_OUT")
    assert "check it before trying again" in answer.body["detail"]


def test_settings_are_checked_together() -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_admin_settings(
            {"TIDELOG_ADMIN_AUTHORIZATION": "off", "TIDELOG_CONFIG_NUM_PARTITION": "1"}
        )
    told = "; ".join(raised.value.problems)
    assert "TIDELOG_METADATA is required" in told
    assert "must be iam or none, not 'off'" in told
    assert "TIDELOG_CONFIG_NUM_PARTITION names no setting" in told
    given = parse_admin_settings(
        {
            "TIDELOG_METADATA": "sqlite:x",
            "TIDELOG_OBJECTS": "memory:",
            "TIDELOG_CONFIG_NUM_PARTITIONS": "6",
        }
    )
    assert given.requires_identity
    assert given.function.node_config.num_partitions == 6
