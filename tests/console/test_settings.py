from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_console.__main__ import main
from tidelog_console.settings import ConsoleSettings
from tidelog_core.errors import InvalidConfig


def test_a_console_for_other_machines_needs_logins_and_encryption() -> None:
    with pytest.raises(InvalidConfig) as refused:
        ConsoleSettings(bootstrap_servers="n:9092", host="0.0.0.0")
    assert len(refused.value.problems) == 2
    with pytest.raises(InvalidConfig, match="in the clear"):
        ConsoleSettings(bootstrap_servers="n:9092", host="::", security_protocol="SASL_SSL")
    ConsoleSettings(
        bootstrap_servers="n:9092", host="::", security_protocol="SASL_SSL", is_behind_proxy=True
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_neither(host: str) -> None:
    settings = ConsoleSettings(bootstrap_servers="n:9092", host=host)
    assert settings.is_loopback
    assert not settings.asks_to_log_in


def test_nodes_that_ask_for_logins_make_the_console_ask() -> None:
    settings = ConsoleSettings(bootstrap_servers="n:9092", security_protocol="SASL_PLAINTEXT")
    assert settings.asks_to_log_in


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "nobody has to log in"),
        (("--security-protocol", "TLS"), "--security-protocol must be one of"),
        (("--port", "70000"), "--port"),
        (("--certificate", "/no/such/file"), "--certificate /no/such/file"),
        (("--security-protocol", "SSL", "--ca-file", "/no/such/file"), "--ca-file"),
        (("--security-protocol", "SASL_SSL", "--ca-file", "/no/such/file"), "--ca-file"),
    ],
    ids=["host", "protocol", "port", "certificate", "authority", "authority-with-logins"],
)
def test_wrong_settings_end_the_start(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_every_static_file_of_others_has_its_licence() -> None:
    import tidelog_console

    static = Path(tidelog_console.__file__).parent / "static"
    assert "Zero-Clause BSD" in (static / "htmx.LICENSE.txt").read_text()
    assert "MIT" in (static / "uplot.LICENSE.txt").read_text()
