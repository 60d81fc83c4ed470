"""``tidelog context``: the file of contexts, changed and shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tidelog_cli.context_edits import with_context, with_current, without_context
from tidelog_cli.context_names import complete_context
from tidelog_cli.failures import CommandFailed

from tests.support.command import called, environment, tidelog
from tests.support.node_process import NodeProcess

PASSWORD = "canary-pässwörd"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts, which is not there yet."""
    for name in os.environ:
        if name.startswith("TIDELOG_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "tidelog" / "config.toml"


def names() -> list[str]:
    return [row["name"] for row in called("context", "list", "--json").document]


def test_contexts_are_added_chosen_shown_and_removed(file: Path) -> None:
    assert called("context", "list").lines == ["NAME  CURRENT"]
    called("context", "add", "dev", "--bootstrap", "localhost:9092")
    called(
        *("context", "add", "prod", "-b", "a:1,b:2", "--set", "security.protocol=SSL"),
        *("--set", "metadata.store=dynamodb://t", "--set", "object.store=s3://b/c"),
    )
    rows = [line.split() for line in called("context", "list").lines[1:]]
    assert rows == [
        ["dev", "*", "localhost:9092", "-", "-", "-"],
        ["prod", "-", "a:1,b:2", "SSL", "-", "-"],
    ]
    called("context", "use", "prod")
    assert file.read_text().startswith('current = "prod"\n')
    shown = called("context", "show", "--json").document
    assert shown["context"] == "prod"
    assert {row["name"]: row["value"] for row in shown["settings"]} == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SSL",
        "metadata.store": "dynamodb://t",
        "object.store": "s3://b/c",
    }
    assert called("--context", "dev", "context", "show").lines[0] == "context dev"
    removed = called("context", "remove", "prod")
    assert "no context is the current one now" in removed.errors
    assert names() == ["dev"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_environment_is_shown_with_its_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called("context", "add", "dev", "--bootstrap", "a:1")
    monkeypatch.setenv("TIDELOG_SASL_PASSWORD", PASSWORD)
    shown = called("context", "show")
    assert [line.split(maxsplit=2) for line in shown.lines[2:]] == [
        ["bootstrap.servers", "a:1", f"{file}, line 4"],
        ["sasl.password", "(hidden)", "TIDELOG_SASL_PASSWORD"],
    ]


def test_a_password_is_asked_for_or_in_a_file_and_never_shown(file: Path, tmp_path: Path) -> None:
    user = ("--set", "sasl.username=alice", "--set", "sasl.mechanism=PLAIN")
    arguments = ("context", "add", "asked", *user, "--ask-password")
    environ = {**environment(), "XDG_CONFIG_HOME": str(file.parents[1])}
    done = tidelog(*arguments, given=f"{PASSWORD}\n".encode(), environ=environ)
    assert (done.out, done.errors) == (b"", "")
    assert PASSWORD in file.read_text()
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"client.id=x\nsasl.mechanisms=PLAIN\nsasl.username=bob\nsasl.password={PASSWORD}\n"
        "ssl.ca.location=relative.pem\n"
    )
    called("context", "add", "copied", "--from", properties)
    for arguments in (("list",), ("list", "--json"), ("show", "asked"), ("show", "copied")):
        outcome = called("context", *arguments)
        assert PASSWORD not in outcome.out.decode() + outcome.errors
    rows = called("context", "show", "copied", "--json").document["settings"]
    shown = {row["name"]: row["value"] for row in rows}
    assert shown["ssl.truststore.location"] == str(Path.cwd() / "relative.pem")
    assert "client.id" not in shown
    file.chmod(0o644)
    assert "everyone on this machine can read" in called("context", "list").errors
    called("context", "use", "asked")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_any_context_the_command_that_makes_one_is_named(file: Path) -> None:
    refused = called("context", "use", "a", status=2)
    assert "has no context 'a', `tidelog context add` makes one" in refused.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "a"), "give --bootstrap, --from or --set"),
        (("add", "a b", "-b", "x:1"), "NAME must be 1 to 100 letters"),
        (("add", "a", "--set", "sasl.password=canary"), "sasl.password is no argument"),
        (("add", "a", "--set", "sasl.user=x"), "sasl.user is not known, known are sasl.jaas"),
        (("add", "a", "--set", "user=x"), "user is not known, known are admin.url"),
        (("add", "a", "-b", "x:y"), "bootstrap.servers must be host:port"),
        (("add", "a", "-b", "x:1", "--ask-password"), "--ask-password needs"),
        (("add", "there", "-b", "x:1"), "there is a context 'there': --replace replaces it"),
        (("use", "a"), "has no context 'a', its contexts are: there"),
        (("remove", "a"), "has no context 'a'"),
        (("show", "a"), "has no context 'a'"),
    ],
)
def test_a_wrong_command_changes_nothing(file: Path, arguments: tuple[str, ...], said: str) -> None:
    called("context", "add", "there", "-b", "x:1")
    before = file.read_text()
    refused = called("context", *arguments, status=2)
    assert refused.errors.count("\n") == 1
    assert said in refused.errors
    assert "canary" not in refused.errors
    assert file.read_text() == before


def test_a_context_is_replaced_where_it_is_current(file: Path) -> None:
    called("context", "add", "a", "-b", "x:1")
    called("context", "add", "b", "-b", "y:1")
    called("context", "add", "a", "-b", "z:1", "--replace")
    assert called("context", "show", "--json").document["context"] == "a"
    assert names() == ["b", "a"]


def test_a_broken_file_fails_what_needs_it_and_can_be_mended(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("current = 'a'\n[contexts.a]\nuser = 'x'\n[contexts.b]\n")
    refused = called("topic", "list", status=2)
    assert f"{file}, line 3: user is not known" in refused.errors
    assert "Usage" in called("topic", "list", "--help").out.decode()
    listed = called("context", "list")
    assert "line 3: user is not known" in listed.errors
    called("context", "remove", "a")
    assert called("context", "list").errors == ""


def test_a_named_file_is_made_where_it_is_named(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.toml"
    monkeypatch.setenv("TIDELOG_CONFIG", str(mine))
    assert str(mine) in called("context", "list", status=2).errors
    called("context", "add", "a", "-b", "x:1")
    assert mine.exists()
    assert names() == ["a"]


def test_a_link_to_the_file_stays(tmp_path: Path, file: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("")
    file.parent.mkdir(parents=True)
    file.symlink_to(target)
    called("context", "add", "a", "-b", "x:1")
    assert file.is_symlink()
    assert "[contexts.a]" in target.read_text()


def test_stores_and_addresses_are_those_of_the_context(file: Path, cli_node: NodeProcess) -> None:
    called("context", "add", "node", "-b", cli_node.address)
    called("topic", "create", "of-a-context")
    assert "of-a-context" in called("topic", "list").out.decode()
    folder = file.parent
    called(
        *("context", "add", "stores", "--use", "--set", f"metadata.store=sqlite://{folder}/m.db"),
        *("--set", f"object.store=file://{folder}/o"),
    )
    for command in (("tier", "status"), ("verify",)):
        assert f"no metadata store at {folder}/m.db" in called(*command, status=1).errors
    called("context", "add", "folder", "--use", "--set", f"data.dir={folder}/none")
    for command in (("tier", "status"), ("verify",)):
        assert f"data directory {folder}/none does not exist" in called(*command, status=1).errors
    missing = called("verify", "--data-dir", f"{folder}/other", status=1)
    assert f"{folder}/other does not exist" in missing.errors


def test_the_shell_completes_the_names_of_contexts(file: Path) -> None:
    called("context", "add", "prod-1", "-b", "x:1")
    called("context", "add", "dev", "-b", "x:1")
    environ = {
        **environment(),
        "XDG_CONFIG_HOME": str(file.parents[1]),
        "_TIDELOG_COMPLETE": "complete_bash",
        "COMP_WORDS": "tidelog --context pr",
        "COMP_CWORD": "2",
    }
    assert tidelog(environ=environ).lines == ["prod-1"]
    assert complete_context("d") == ["dev"]
    file.write_text("no toml")
    assert complete_context("d") == []


def test_a_job_is_told_what_precedes_it(file: Path) -> None:
    """It is a process of its own."""
    submit = "sh -c 'echo $TIDELOG_CONTEXT $TIDELOG_COMMAND_CONFIG'"
    chosen = ("--context", "prod", "--command-config", "my.properties")
    assert tidelog(*chosen, "job", "audit", "--submit", submit).lines == ["prod my.properties"]


def test_a_backfill_has_the_login_of_the_context_unless_it_has_its_own(file: Path) -> None:
    from tidelog_cli.spark_jobs.backfill import sink_address

    file.parent.mkdir(parents=True)
    (file.parent / "password").write_text(f"{PASSWORD}\n")
    file.write_text(
        "current = 'c'\n[contexts.c]\nbootstrap.servers = 'a:1'\n"
        "security.protocol = 'SASL_SSL'\nsasl.mechanism = 'PLAIN'\nsasl.username = 'u'\n"
        "sasl.password.location = 'password'\nmetadata.store = 'sqlite:///m'\n"
    )
    called("context", "list")  # What was said before another command does not count.
    assert sink_address("", {}) == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "u",
        "kafka.sasl.password": PASSWORD,
    }
    for name in ("kafka.security.protocol", "Kafka.Security.Protocol"):
        own = {name: "PLAINTEXT"}
        assert sink_address("b:1", own) == {"kafka.bootstrap.servers": "b:1"}


# -- edits --

WRITTEN = """\
# my clusters
current = "a"  # for now

[contexts.a]  # the first
bootstrap.servers = "x:1"
# its login
sasl.username = 'me'

[contexts.a.ssl]
key.location = "k"

[contexts.bb]
bootstrap.servers = "y:1"
"""


def test_edits_keep_what_people_wrote() -> None:
    assert with_current(WRITTEN, "bb") == WRITTEN.replace(
        'current = "a"  # for now', 'current = "bb"'
    )
    added = with_context(WRITTEN, "c", {"sasl.username": 'q"\\\x7fä', "sasl.mechanism": "PLAIN"})
    assert added.startswith(WRITTEN)
    assert without_context(added, "c").rstrip("\n") == WRITTEN.rstrip("\n")
    assert without_context(WRITTEN, "a") == (
        '# my clusters\n\n[contexts.bb]\nbootstrap.servers = "y:1"\n'
    )
    assert with_context("", "a", {"bootstrap.servers": "x:1"}) == (
        '[contexts.a]\nbootstrap.servers = "x:1"\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        "contexts.a.bootstrap.servers = 'x:1'\n",
        "contexts = { a = { bootstrap = { servers = 'x:1' } } }\n",
        "[contexts]\na.bootstrap.servers = 'x:1'\n",
        "note = '''\n[contexts.a]\n'''\n[contexts.a]\n",
    ],
)
def test_a_form_that_cannot_be_changed_is_left_to_a_person(text: str) -> None:
    with pytest.raises(CommandFailed, match="edit it, with one table"):
        without_context(text, "a")


def test_text_after_a_value_of_many_lines_is_not_taken_for_a_setting() -> None:
    text = "note = '''\ncurrent = 1\n'''\n"
    with pytest.raises(CommandFailed, match="edit it"):
        with_current(text, "a")
