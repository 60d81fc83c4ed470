from __future__ import annotations

import pytest
from tidelog_console.guard import HEADERS, Guard, is_signed, sign
from tidelog_console.settings import ConsoleSettings

LOCAL = Guard.of(ConsoleSettings(bootstrap_servers="localhost:9092"))
OUTSIDE = Guard.of(
    ConsoleSettings(
        bootstrap_servers="localhost:9092",
        security_protocol="SASL_SSL",
        host="0.0.0.0",
        host_names=("Console.Example.org",),
        is_behind_proxy=True,
    )
)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9640", "localhost:1", "LOCALHOST", "[::1]:9640", "localhost."]
)
def test_a_console_on_loopback_knows_its_own_names(host: str) -> None:
    assert LOCAL.knows_host(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9640", "", "10.0.0.1"],
)
def test_a_console_on_loopback_answers_to_no_other_name(host: str) -> None:
    """A name of another site that leads to 127.0.0.1: DNS rebinding."""
    assert not LOCAL.knows_host(host)


def test_no_host_is_no_name() -> None:
    assert not LOCAL.knows_host(None)


def test_a_console_for_others_has_the_names_that_it_was_given_and_addresses() -> None:
    assert OUTSIDE.knows_host("console.example.org:9640")
    assert OUTSIDE.knows_host("192.0.2.7:9640")
    assert not OUTSIDE.knows_host("evil.example")


@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, True),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, True),
        (
            {
                "Sec-Fetch-Site": "cross-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "document",
            },
            False,
        ),
        (
            {
                "Sec-Fetch-Site": "cross-site",
                "Sec-Fetch-Mode": "navigate",
                "Sec-Fetch-Dest": "iframe",
            },
            True,
        ),
    ],
)
def test_another_sites_page_may_link_and_nothing_else(
    headers: dict[str, str], is_foreign: bool
) -> None:
    assert LOCAL.is_foreign(headers) is is_foreign


def test_a_form_comes_from_the_console_itself() -> None:
    host = "127.0.0.1:9640"
    assert LOCAL.is_own_origin("http://127.0.0.1:9640", host)
    assert LOCAL.is_own_origin(None, host)
    for origin in ("http://127.0.0.1:8080", "https://evil.example", "null", ""):
        assert not LOCAL.is_own_origin(origin, host)


def test_a_signature_is_of_one_purpose_text_and_secret() -> None:
    signature = sign(b"secret", "session", "id")
    assert is_signed(b"secret", "session", "id", signature)
    assert not is_signed(b"other", "session", "id", signature)
    assert not is_signed(b"secret", "form", "id", signature)
    assert not is_signed(b"secret", "session", "id2", signature)
    assert not is_signed(b"secret", "session", "id", "é")


def test_a_text_of_any_bytes_can_be_signed() -> None:
    text = b"\xff".decode(errors="surrogateescape")
    assert is_signed(b"secret", "form", text, sign(b"secret", "form", text))


def test_the_policy_lets_no_script_of_a_page_run() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
