"""Files of contexts: what is read, and what is said of broken ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog.errors import InvalidConfig
from tidelog.settings.context_file import context_path, parse_contexts, read_contexts
from tidelog.settings.properties_file import SIZE_BYTES_MAX, read_given, read_properties

PATH = Path("/home/me/.config/tidelog/config.toml")


def test_a_file_has_contexts_with_kafkas_names_and_lines() -> None:
    file = parse_contexts(
        PATH,
        "# mine\ncurrent = 'prod'\n\n[contexts.prod]  # the real one\n"
        "bootstrap.servers = ['a:1', 'b:2']\n'security.protocol' = 'SSL'\n"
        "ssl.ca.location = 'authority.pem'\nssl.key.location = '/keys/mine.pem'\n"
        "sasl.oauthbearer.header.urlencode = true\n"
        "[contexts.dev.bootstrap]\nservers = 'localhost:9092'\n",
    ).checked()
    prod = file.contexts["prod"]
    assert {name: given.value for name, given in prod.items()} == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SSL",
        "ssl.ca.location": "/home/me/.config/tidelog/authority.pem",
        "ssl.key.location": "/keys/mine.pem",
        "sasl.oauthbearer.header.urlencode": "true",
    }
    assert prod["bootstrap.servers"].place == f"{PATH}, line 5"
    assert prod["security.protocol"].place == f"{PATH}, line 6"
    assert file.contexts["dev"]["bootstrap.servers"].place == f"{PATH}, line 11"
    assert (file.current, file.warning) == ("prod", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "is no TOML: Expected '=' after a key"),
        ("[contexts.a]\n[contexts.a]", "is no TOML"),
        ("[contexts.a]\nsasl.password='x'\nsasl.password.location='y'", "is no TOML"),
    ],
)
def test_no_toml_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse_contexts(PATH, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("curent = 'a'", "line 1: curent is not known, known are current, contexts"),
        ("current = 'a'", "line 1: current must name a context: there is none"),
        ("current = 7\n[contexts.b]", "line 1: current must name a context: b"),
        ("contexts = 'a'", "contexts must be tables: [contexts.name]"),
        ("contexts.a = 'a'", "line 1: context 'a' must be a table named by 1 to 100 letters"),
        ("[contexts.'a b']", "context 'a b' must be a table named by"),
        ("[contexts.a]\nbootstrap.servers = 7.5", "line 2: bootstrap.servers must be a text"),
        ("[contexts.a]\nbootstrap.servers = 'x:y'", "line 2: bootstrap.servers must be host:port"),
        ("[contexts.a]\nuser = 'a'", "line 2: user is not known, known are admin.url"),
        ("[contexts.a]\nsasl.user = 'a'", "line 2: sasl.user is not known, known are sasl.jaas"),
        ("[contexts.a]\nmetadata.store = 'mysql:x'", "must begin with sqlite: or dynamodb:"),
        ("[contexts.a]\nadmin.url = 'ftp:x'", "must begin with https: or http:"),
        ("[contexts.a]\nssl.keystore.type = 'JKS'", "must be PEM: convert keystores"),
        (
            "[contexts.a]\nsasl.oauthbearer.token.endpoint.url = 'http://example.org/'",
            "must be an https address, or http of this machine, or file:///",
        ),
        (
            "[contexts.a]\nsasl.login.callback.handler.class = 'com.example.Mine'",
            "must be Kafka's OAuthBearerLoginCallbackHandler",
        ),
    ],
)
def test_a_wrong_name_or_value_is_named_with_its_line(text: str, said: str) -> None:
    file = parse_contexts(PATH, text)
    (problem,) = file.problems
    assert problem.startswith(str(PATH))
    assert said in problem
    with pytest.raises(InvalidConfig):
        file.checked()


def test_all_problems_of_a_file_are_said_together() -> None:
    file = parse_contexts(PATH, "x = 1\n[contexts.a]\ny = '1'\n[contexts.b]\nz = '2'\n")
    assert [problem.split(": ")[0] for problem in file.problems] == [
        f"{PATH}, line {line}" for line in (1, 3, 5)
    ]


@pytest.mark.parametrize(
    ("setting", "mode", "is_warned"),
    [
        ("sasl.password = 'x'", 0o644, True),
        ("sasl.oauthbearer.client.secret = 'x'", 0o604, True),
        ("ssl.key.password = 'x'", 0o644, True),
        ("sasl.jaas.config = 'x'", 0o644, True),
        ("sasl.password = 'x'", 0o640, False),
        ("sasl.password = 'x'", 0o600, False),
        ("sasl.password.location = 'x'", 0o644, False),
    ],
)
def test_a_password_that_everyone_can_read_is_warned_of(
    tmp_path: Path, setting: str, mode: int, is_warned: bool
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[contexts.a]\n{setting}\n")
    path.chmod(mode)
    warning = read_contexts({"TIDELOG_CONFIG": str(path)}).warning
    assert (warning is not None) is is_warned
    assert warning is None or f"chmod 600 {path}" in warning


def test_the_file_is_that_of_the_environment(tmp_path: Path) -> None:
    assert context_path({}) == Path("~/.config/tidelog/config.toml").expanduser()
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert context_path(home) == tmp_path / "tidelog" / "config.toml"
    assert read_contexts(home).contexts == {}
    named = {**home, "TIDELOG_CONFIG": str(tmp_path / "mine.toml")}
    assert context_path(named) == tmp_path / "mine.toml"
    with pytest.raises(InvalidConfig, match=r"cannot read .*mine\.toml"):
        read_contexts(named)


# -- files of name=value lines --


def test_a_line_may_go_on_in_the_next(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "! a comment \\\nsasl.jaas.config=a.PlainLoginModule required \\\n"
        '    username="u" \\\n  password="p=";\nclient.id = x\\\\\nlast=one\\'
    )
    given = read_given(file)
    assert given["sasl.jaas.config"].value == (
        'a.PlainLoginModule required username="u" password="p=";'
    )
    assert given["sasl.jaas.config"].place == f"{file}, line 2"
    assert given["client.id"].value == "x\\\\"
    assert given["last"].value == "one"


@pytest.mark.parametrize("data", [b"\xff=x", b"a=" + b"x" * SIZE_BYTES_MAX])
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(data)
    with pytest.raises(InvalidConfig, match=str(file)):
        read_properties(file)
    with pytest.raises(InvalidConfig, match=str(file)):
        read_contexts({"TIDELOG_CONFIG": str(file)})
