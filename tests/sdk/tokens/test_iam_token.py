"""Tokens of STS: the request as AWS documents it, its errors, and a node that takes one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tidelog import IamToken
from tidelog.errors import AuthenticationFailed, InvalidConfig, TokenNotFetched

from tests.support.command import called
from tests.support.http_answers import HttpAnswers
from tests.support.sts import failure, success

EXPIRES_AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpAnswers]:
    with HttpAnswers(lambda _: (200, success("a.b.c", EXPIRES_AT))) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        yield server


def test_the_request_is_the_documented_one_and_signed(sts: HttpAnswers) -> None:
    token = IamToken(audience="tidelog", duration_seconds=600, algorithm="RS256").fetch()
    assert (token.text, token.expires_at) == ("a.b.c", EXPIRES_AT.timestamp())
    (asked,) = sts.asked
    assert asked.path == "/"
    assert asked.form == {
        "Action": "GetWebIdentityToken",
        "Version": "2011-06-15",
        "Audience.member.1": "tidelog",
        "DurationSeconds": "600",
        "SigningAlgorithm": "RS256",
    }
    signature = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/(\d{8})/eu-west-1/sts/aws4_request, "
        r"SignedHeaders=([a-z0-9;-]+), Signature=[0-9a-f]{64}",
        asked.headers["authorization"],
    )
    assert signature is not None
    assert asked.headers["x-amz-date"].startswith(signature[1])
    assert {"host", "x-amz-date", "x-amz-security-token"} <= set(signature[2].split(";"))
    assert asked.headers["x-amz-security-token"] == "session"


def test_the_endpoint_is_the_regions_even_where_the_global_one_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The global endpoint does not have the operation."""
    monkeypatch.setenv("AWS_STS_REGIONAL_ENDPOINTS", "legacy")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    client = IamToken(audience="a", region="us-east-1").client()
    assert client.meta.endpoint_url == "https://sts.us-east-1.amazonaws.com"


async def test_a_token_is_kept_for_further_logins(sts: HttpAnswers) -> None:
    source = IamToken(audience="kept")
    assert [await source() for _ in range(3)] == ["a.b.c"] * 3
    assert len(sts.asked) == 1


@pytest.mark.parametrize(
    ("status", "code", "hint", "requests"),
    [
        (403, "OutboundWebIdentityFederationDisabled", "enable-outbound", 1),
        (403, "OutboundWebIdentityFederationDisabledException", "enable-outbound", 1),
        (403, "AccessDenied", "needs the right sts:GetWebIdentityToken", 1),
        (403, "SessionDurationEscalationException", "sts:GetWebIdentityToken", 1),
        (500, "InternalFailure", "reaches STS", 3),
        (400, "Throttling", "reaches STS", 3),
    ],
)
def test_a_refusal_of_sts_has_its_code_and_what_to_do(
    sts: HttpAnswers, status: int, code: str, hint: str, requests: int
) -> None:
    sts.answer = lambda _: (status, failure(code, "because\nof that"))
    with pytest.raises((AuthenticationFailed, TokenNotFetched)) as failed:
        IamToken(audience="a").fetch()
    assert str(failed.value) == f"no token from STS: {code}: because of that"
    assert hint in failed.value.hint
    assert failed.value.retriable is (requests > 1)
    assert len(sts.asked) == requests


def test_an_answer_without_a_token_is_refused(sts: HttpAnswers) -> None:
    sts.answer = lambda _: (200, success("not a token", EXPIRES_AT))
    with pytest.raises(AuthenticationFailed, match="answers without a token"):
        IamToken(audience="a").fetch()


def test_without_credentials_the_process_is_told_what_it_needs(
    sts: HttpAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AuthenticationFailed, match="Unable to locate credentials") as failed:
        IamToken(audience="a").fetch()
    assert "credentials and a region" in failed.value.hint
    assert sts.asked == []


def test_wrong_wishes_are_refused_before_aws_is_asked(sts: HttpAnswers) -> None:
    wrong = IamToken(audience="", duration_seconds=59, algorithm="HS256")
    with pytest.raises(InvalidConfig) as refused:
        wrong.fetch()
    assert len(refused.value.problems) == 3
    assert sts.asked == []


# -- the command --


def test_the_command_prints_a_token(sts: HttpAnswers) -> None:
    assert called("iam-token", "--audience", "x").lines == ["a.b.c"]
    asked = sts.asked[-1].form
    assert (asked["Audience.member.1"], asked["DurationSeconds"]) == ("x", "300")
    printed = called("iam-token", "--duration", "90", "--json").document
    assert printed == {"token": "a.b.c", "expires_at": "2030-01-02T03:04:05+00:00"}
    assert sts.asked[-1].form["DurationSeconds"] == "90"
    refused = called("iam-token", "--duration", "5", "--algorithm", "none", status=2)
    assert refused.errors == (
        "tidelog: the duration must be 60 to 3600 seconds;"
        " the algorithm must be one of ES384, RS256\n"
    )
    sts.answer = lambda _: (403, failure("AccessDenied", "not you"))
    refused = called("iam-token", status=1)
    assert refused.errors.startswith("tidelog: no token from STS: AccessDenied: not you; ")
    assert "canary" not in refused.errors


def test_a_token_lives_as_long_as_sts_says(sts: HttpAnswers) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)
    sts.answer = lambda _: (200, success("a.b.c", soon))
    expires_at = IamToken(audience="a").fetch().expires_at
    assert expires_at is not None
    assert abs(expires_at - soon.timestamp()) < 1
