"""Whatever files and variables have, the answer is settings or sentences, not a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tidelog.errors import InvalidConfig
from tidelog.settings.context_file import context_path, parse_contexts
from tidelog.settings.names import NAMED, environment_name
from tidelog.settings.resolving import resolve

PATH = Path("/home/me/config.toml")
VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        (
            *("SASL_SSL", "SASL_PLAINTEXT", "SSL", "OAUTHBEARER", "PLAIN", "SCRAM-SHA-512", "u"),
            *(
                "~nobody-of-this-name/x",
                "a\0b",
                "file:///a%00b",
                "file:///\0",
                "https://x/",
                "aws_iam",
            ),
            *("https://[::1", "https://x:99999/", "audience=a,region=b", "a=b,c", "{}", "[", "\\"),
            'x.OAuthBearerLoginModule required clientId="a" clientSecret="b" x="',
            'x.PlainLoginModule required username="a" password="b\\"";',
        )
    ),
)
LOGIN = st.sampled_from(("security.protocol", "sasl.mechanism"))
NAMES = st.one_of(LOGIN, st.sampled_from(sorted(NAMED)))
FRAGMENTS = st.sampled_from(
    (
        *(
            "current",
            "contexts",
            "a",
            "bootstrap.servers",
            "sasl.password",
            "=",
            "'a'",
            '"""',
            "\n",
        ),
        *(
            "[",
            "]",
            "[contexts.a]\n",
            "{",
            "}",
            ".",
            "1",
            "1979-05-27",
            "nan",
            "true",
            "#",
            ",",
            "\0",
        ),
    )
)


def problems_of(work: Callable[[], object]) -> tuple[str, ...]:
    try:
        work()
    except InvalidConfig as refused:
        return refused.problems
    return ()


@settings(max_examples=80)
@given(st.dictionaries(NAMES, VALUES, max_size=8), st.dictionaries(NAMES, VALUES, max_size=4))
@example({"sasl.password.location": "a\0b", "sasl.username": "u"}, {})
@example({"ssl.truststore.location": "a\0b", "security.protocol": "SSL"}, {})
@example({"ssl.keystore.location": "a\0b", "security.protocol": "SSL"}, {})
def test_any_settings_are_taken_or_explained(
    of_environment: dict[str, str], of_file: dict[str, str]
) -> None:
    environ = {environment_name(name): value for name, value in of_environment.items()}
    environ["XDG_CONFIG_HOME"] = "/nowhere"
    environ.setdefault("TIDELOG_SASL_MECHANISM", "PLAIN")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "client.properties"
        lines = (f"{name}={value}\n" for name, value in of_file.items())
        file.write_bytes("".join(lines).encode(errors="surrogatepass"))
        for problem in problems_of(lambda: resolve(environ, properties=file).security()):
            assert problem
            assert "\n" not in problem


@settings(max_examples=150)
@given(st.lists(FRAGMENTS, max_size=30).map(" ".join))
@example("[contexts.a]\nssl.key.location = '~nobody-of-this-name/x'")
@example("x = " + "[" * 5_000)
@example("[contexts.a]\n" + ".".join("a" * 3_000) + " = 1")
def test_any_file_of_contexts_is_read_or_explained(text: str) -> None:
    for problem in problems_of(lambda: parse_contexts(PATH, text)):
        assert problem.startswith(str(PATH))


@pytest.mark.parametrize("variable", ["TIDELOG_CONFIG", "XDG_CONFIG_HOME"])
def test_a_home_that_is_nobodys_is_a_folder_of_that_name(variable: str) -> None:
    path = context_path({variable: "~nobody-of-this-name/x"})
    assert path.parts[0] == "~nobody-of-this-name"
