from __future__ import annotations

import pytest
from tidelog_core.setting_values.urls import parse_otlp_endpoint


@pytest.mark.parametrize(
    "text", ["http://localhost:4318", "https://otlp.example/v2", "http://[::1]:4318"]
)
def test_an_address_is_taken_without_a_slash_at_its_end(text: str) -> None:
    assert parse_otlp_endpoint(f"{text}/") == text


@pytest.mark.parametrize(
    "text",
    [
        "localhost:4318",
        "ftp://localhost",
        "http://",
        "http://user:secret@localhost",
        "http://:secret@localhost",
        "http://@localhost",
        "http://localhost:65536",
        "http://localhost:0",
        "http://localhost:port",
        "http://localhost?key=secret",
    ],
)
def test_an_address_that_cannot_be_asked_or_has_a_secret_is_refused(text: str) -> None:
    """Endpoints are shown to administrators, and logged; headers are not."""
    with pytest.raises(ValueError, match="must be http"):
        parse_otlp_endpoint(text)
