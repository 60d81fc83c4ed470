"""Which of several settings counts, and what is said of wrong ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
from tidelog import ClientFactory, Sasl
from tidelog.errors import InvalidConfig
from tidelog.settings.names import NAMED, SETTINGS, environment_name
from tidelog.settings.resolving import DEFAULT_BOOTSTRAP, Connection, resolve

SOURCES = ("environment", "file", "context")
OTHERS = {  # settings with two values that are allowed
    "bootstrap.servers": ("a:1", "b:2", "c:3"),
    "security.protocol": ("SSL", "SASL_SSL", "SASL_PLAINTEXT"),
    "sasl.mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "metadata.store": ("sqlite:///a", "sqlite:///b", "dynamodb://c"),
    "ssl.truststore.location": ("/a", "/b", "/c"),
}


class Home:
    """A folder with a file of contexts and a file of ``--command-config``."""

    def __init__(self, folder: Path) -> None:
        self.contexts = folder / "tidelog" / "config.toml"
        self.contexts.parent.mkdir()
        self.file = folder / "client.properties"
        self.environ = {"XDG_CONFIG_HOME": str(folder)}

    def resolve(
        self, environ: Mapping[str, str] = {}, *, with_file: bool = True, context: str | None = None
    ) -> Connection:
        file = self.file if with_file and self.file.exists() else None
        return resolve({**self.environ, **environ}, properties=file, context=context)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    "given",
    [each for size in (1, 2, 3) for each in itertools.combinations(SOURCES, size)],
    ids="+".join,
)
def test_the_first_source_of_the_table_counts(
    home: Home, name: str, given: tuple[str, ...]
) -> None:
    values = dict(zip(SOURCES, OTHERS[name], strict=True))
    environ = {environment_name(name): values["environment"]} if "environment" in given else {}
    if "file" in given:
        home.file.write_text(f"{name}={values['file']}\n")
    if "context" in given:
        home.contexts.write_text(f"current = 'c'\n[contexts.c]\n{name} = '{values['context']}'\n")
    assert home.resolve(environ).get(name) == values[given[0]]


def test_nothing_given_is_a_plain_node_on_this_machine(home: Home) -> None:
    found = home.resolve()
    assert (found.bootstrap_servers, found.context) == (DEFAULT_BOOTSTRAP, None)
    assert found.security() == {"ssl": None, "sasl": None}


def test_a_file_of_kafkas_is_a_whole(home: Home) -> None:
    """A context's login is not sent to the cluster of another file; addresses are its own."""
    home.contexts.write_text(
        "current = 'c'\n[contexts.c]\nbootstrap.servers = 'a:1'\nsecurity.protocol = 'SASL_SSL'\n"
        "sasl.mechanism = 'PLAIN'\nsasl.username = 'u'\nsasl.password = 'p'\nadmin.url = 'https:x'\n"
    )
    home.file.write_text("client.id=x\n")
    found = home.resolve()
    assert found.security() == {"ssl": None, "sasl": None}
    assert (found.bootstrap_servers, found.get("admin.url")) == ("a:1", "https:x")
    home.file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    with pytest.raises(InvalidConfig, match="needs a user and a password"):
        home.resolve().security()


@pytest.mark.parametrize(
    ("variables", "password"),
    [
        ({}, "of the context"),
        ({"TIDELOG_SASL_PASSWORD": "own"}, "own"),
        ({"TIDELOG_SASL_PASSWORD_LOCATION": "FILE"}, "of the file"),
    ],
)
@pytest.mark.parametrize(
    "of_context",
    [
        "sasl.username = 'u'\nsasl.password = 'of the context'\n",
        "sasl.username = 'u'\nsasl.password.location = 'beside'\n",
        'sasl.jaas.config = \'x.PlainLoginModule required username="u"'
        ' password="of the context";\'\n',
    ],
)
def test_a_password_of_the_environment_replaces_every_other(
    home: Home, variables: dict[str, str], password: str, of_context: str
) -> None:
    home.contexts.write_text(
        "current = 'c'\n[contexts.c]\nsecurity.protocol = 'SASL_PLAINTEXT'\n"
        f"sasl.mechanism = 'PLAIN'\n{of_context}"
    )
    (home.contexts.parent / "beside").write_text("of the context\n")
    home.file.write_text("of the file\n")
    environ = {n: v.replace("FILE", str(home.file)) for n, v in variables.items()}
    if variables:
        environ["TIDELOG_SASL_USERNAME"] = "u"
    found = home.resolve(environ, with_file=False)
    assert found.security()["sasl"] == Sasl("PLAIN", "u", password)
    options = found.kafka_options()
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    # Tasks run where the file is not.
    assert "kafka.sasl.password.location" not in options
    assert password in options.get("kafka.sasl.password", options.get("kafka.sasl.jaas.config"))


def test_another_user_of_the_environment_is_no_token_of_the_context(home: Home) -> None:
    home.contexts.write_text(
        "current = 'c'\n[contexts.c]\nsecurity.protocol = 'SASL_PLAINTEXT'\n"
        "sasl.mechanism = 'SCRAM-SHA-256'\nsasl.username = 'id'\nsasl.password = 'hmac'\n"
        "sasl.tokenauth = 'true'\n"
    )
    assert home.resolve().security()["sasl"] == Sasl(
        "SCRAM-SHA-256", "id", "hmac", is_delegation_token=True
    )
    user = {"TIDELOG_SASL_USERNAME": "u", "TIDELOG_SASL_PASSWORD": "p"}
    assert home.resolve(user).security()["sasl"] == Sasl("SCRAM-SHA-256", "u", "p")


def test_a_login_that_is_not_used_is_said(home: Home) -> None:
    home.contexts.write_text("current = 'c'\n[contexts.c]\nsasl.mechanism = 'PLAIN'\n")
    found = home.resolve()
    assert found.security() == {"ssl": None, "sasl": None}
    assert found.notes == (
        f"{home.contexts}, line 3: a login needs security.protocol=SASL_SSL, and is not used",
    )
    assert home.resolve({"TIDELOG_SECURITY_PROTOCOL": "PLAINTEXT"}).notes == ()


def test_stores_and_a_data_directory_exclude_each_other(home: Home) -> None:
    home.contexts.write_text(
        "current = 'c'\n[contexts.c]\nmetadata.store = 'dynamodb://t'\nobject.store = 's3://b'\n"
    )
    found = home.resolve({"TIDELOG_DATA_DIR": "/d"})
    assert [found.get(name) for name in ("data.dir", "metadata.store", "object.store")] == [
        "/d",
        None,
        None,
    ]
    found = home.resolve({"TIDELOG_METADATA_STORE": "sqlite:///m"})
    assert [found.get(name) for name in ("metadata.store", "object.store")] == [
        "sqlite:///m",
        "s3://b",
    ]


def test_the_context_is_that_of_the_argument_the_environment_or_the_file(home: Home) -> None:
    home.contexts.write_text(
        "current = 'a'\n" + "".join(f"[contexts.{n}]\nbootstrap.servers='{n}'\n" for n in "abc")
    )
    assert home.resolve().bootstrap_servers == "a"
    assert home.resolve({"TIDELOG_CONTEXT": "b"}).bootstrap_servers == "b"
    found = home.resolve({"TIDELOG_CONTEXT": "b"}, context="c")
    assert (found.bootstrap_servers, found.context, found.notes) == ("c", "c", ())
    found = home.resolve({"TIDELOG_BOOTSTRAP_SERVERS": "d"}, context="c")
    assert found.bootstrap_servers == "d"
    assert "TIDELOG_BOOTSTRAP_SERVERS counts before the addresses" in found.notes[0]
    with pytest.raises(InvalidConfig, match="no context 'x', its contexts are: a, b, c"):
        home.resolve(context="x")


def test_an_empty_variable_is_none_and_the_old_name_counts_least(home: Home) -> None:
    old = {"TIDELOG_BOOTSTRAP": "old"}
    assert home.resolve({"TIDELOG_BOOTSTRAP_SERVERS": "", **old}).bootstrap_servers == "old"
    assert home.resolve({"TIDELOG_BOOTSTRAP_SERVERS": "new", **old}).bootstrap_servers == "new"


def test_what_kubernetes_says_of_services_is_no_mistake(home: Home) -> None:
    of_pod = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_TLS", "PORT", "PORT_9093_TCP_ADDR")
    home.resolve({f"TIDELOG_SSL_{name}": "x" for name in of_pod})
    with pytest.raises(InvalidConfig, match="TIDELOG_SSL_CA is not known"):
        home.resolve({"TIDELOG_SSL_CA": "x"})


def test_both_names_of_a_setting_are_one(home: Home) -> None:
    home.contexts.write_text("current = 'c'\n[contexts.c]\nssl.truststore.location = '/java'\n")
    found = home.resolve({"TIDELOG_SSL_CA_LOCATION": "/librdkafka"})
    assert found.get("ssl.truststore.location") == "/librdkafka"
    home.file.write_text("sasl.mechanisms=PLAIN\nsasl.mechanism=SCRAM-SHA-256\n")
    assert home.resolve().get("sasl.mechanism") == "SCRAM-SHA-256"


def test_every_setting_has_a_variable_of_its_own() -> None:
    assert len({environment_name(name) for name in NAMED}) == len(NAMED)
    assert len(NAMED) == sum(1 + len(setting.also) for setting in SETTINGS)


def test_all_problems_of_all_sources_are_said_at_once_with_their_places(home: Home) -> None:
    home.file.write_text("# a comment\nsecurity.protocol=TLS\nno value\nsasl.oauthbearer.url=x\n")
    home.contexts.write_text("current = 'c'\n[contexts.c]\nsasl.mechanism = 'GSSAPI'\nuser = 'a'\n")
    variables = {"TIDELOG_SASL_PASWORD": "canary", "TIDELOG_SSL_TRUSTSTORE_TYPE": "JKS"}
    with pytest.raises(InvalidConfig) as refused:
        home.resolve(variables)
    said = refused.value.problems
    places = [
        "TIDELOG_SASL_PASWORD is not known, known are TIDELOG_HTTPS_CA_LOCATION",
        "TIDELOG_SSL_TRUSTSTORE_TYPE: ssl.truststore.type must be PEM",
        f"{home.file}, line 3: it must be name=value",
        f"{home.contexts}, line 3: sasl.mechanism must be one of SCRAM-SHA-256",
        f"{home.contexts}, line 4: user is not known, known are admin.url",
    ]
    for place in places:
        assert any(problem.startswith(place) for problem in said), (place, said)
    assert "canary" not in str(refused.value)
    home.file.write_text("# a comment\nsecurity.protocol=TLS\nsasl.oauthbearer.url=x\n")
    with pytest.raises(InvalidConfig) as refused:
        home.resolve()
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        f"{home.file}, line 2",
        f"{home.file}, line 3",
        f"{home.contexts}, line 3",
        f"{home.contexts}, line 4",
    ]


def test_what_a_login_lacks_is_said_where_the_login_begins(home: Home) -> None:
    home.contexts.write_text(
        "current = 'c'\n[contexts.c]\nsecurity.protocol = 'SASL_SSL'\nsasl.mechanism = 'PLAIN'\n"
    )
    with pytest.raises(InvalidConfig, match="line 4: a SASL login needs a user and a password"):
        home.resolve().security()


def test_a_factory_of_a_context_takes_settings_as_arguments(home: Home) -> None:
    home.contexts.write_text("[contexts.c]\nbootstrap.servers = 'a:1'\n")
    sasl = Sasl("PLAIN", "u", "p")
    factory = ClientFactory.from_context("c", environ=home.environ, sasl=sasl, client_id="mine")
    options = factory.cluster()._options
    assert (str(options.bootstrap[0]), options.client_id, options.sasl) == ("a:1", "mine", sasl)


def test_no_text_shows_a_secret(home: Home) -> None:
    home.contexts.write_text("current = 'c'\n[contexts.c]\nsasl.password = 'canary'\n")
    assert "canary" not in repr(home.resolve())
