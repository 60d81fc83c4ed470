"""``tidelog schema`` over a node's registry."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from tidelog_cli.registry.schema_files import PAGE, ordered
from tidelog_cli.registry.schemas import LEVELS, TYPES
from tidelog_core.schemas.model import Compatibility, SchemaType

from tests.support.command import Outcome, called
from tests.support.http_answers import Asked, HttpAnswers
from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    folder = tmp_path_factory.mktemp("schemas") / "node"
    with NodeProcess(folder, arguments=("--registry-port", str(port))):
        yield f"http://127.0.0.1:{port}"


def schema(url: str, *arguments: object, status: int = 0) -> Outcome:
    return called("schema", *arguments, "--registry", url, status=status)


def test_a_schema_goes_from_its_file_to_its_end(url: str, tmp_path: Path) -> None:
    file, broken = tmp_path / "user.avsc", tmp_path / "broken.avsc"
    file.write_text(USER)
    broken.write_text(USER.replace("long", "string"))
    done = schema(url, "register", "u-value", file)
    assert done.lines == ["u-value version 1 has the schema with id 1"]
    assert schema(url, "get", "u-value").lines == [USER]
    assert schema(url, "get", "--id", 1, "--json").document["schemaType"] == "AVRO"
    rows = [line.split() for line in schema(url, "list").lines]
    assert rows == [["SUBJECT", "VERSION", "ID", "TYPE"], ["u-value", "1", "1", "AVRO"]]
    assert schema(url, "check", "u-value", file).lines == ["compatible with u-value"]
    assert "TYPE_MISMATCH" in schema(url, "check", "u-value", broken, status=1).lines[0]
    assert "(error 40901)" in schema(url, "register", "u-value", broken, status=1).errors
    assert schema(url, "config").lines == ["BACKWARD"]
    assert schema(url, "config", "u-value", "--set", "none").lines == ["NONE"]
    schema(url, "register", "u-value", broken)
    assert schema(url, "config", "u-value", "--remove").lines == ["BACKWARD"]
    done = schema(url, "delete", "u-value", "--version", "latest")
    assert done.lines == ["1 version of u-value deleted: 2"]
    done = schema(url, "delete", "u-value")
    assert done.lines == ["1 version of u-value deleted: 1"]
    done = schema(url, "delete", "u-value", "--permanent")
    assert done.lines == ["2 versions of u-value removed for ever: 1, 2"]


def test_references_and_other_languages_are_given_by_options(url: str, tmp_path: Path) -> None:
    base, whole = tmp_path / "base.proto", tmp_path / "whole.proto"
    base.write_text('syntax = "proto3"; message Base {}')
    whole.write_text('syntax = "proto3"; import "base.proto"; message Whole { Base base = 1; }')
    schema(url, "register", "base", base, "--type", "protobuf")
    options = ("--type", "protobuf", "--reference", "base.proto=base:1")
    schema(url, "register", "whole", whole, *options)
    assert "  Base base = 1;" in schema(url, "get", "whole").lines


def test_an_import_has_schemas_after_those_that_they_refer_to() -> None:
    def one(subject: str, *references: str, version: int = 1) -> dict[str, Any]:
        found = [{"name": "N", "subject": name, "version": 1} for name in references]
        return {"subject": subject, "version": version, "references": found}

    schemas = [one("c", "b", "a"), one("b", "a"), one("a"), one(":.s:x", "y"), one(":.s:y")]
    names = [found["subject"] for found in ordered(schemas)]
    assert names == ["a", "b", "c", ":.s:y", ":.s:x"]
    circle = [one("d", "e"), one("e", "d")]
    assert len(ordered(circle)) == 2


@pytest.mark.slow
def test_an_export_is_imported_with_all_ids(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    urls = [f"http://127.0.0.1:{one}" for one in (port, other)]
    nodes = [
        NodeProcess(tmp_path / str(one), arguments=("--registry-port", str(one)))
        for one in (port, other)
    ]
    file, export = tmp_path / "schema", tmp_path / "export.json"
    with nodes[0]:
        for subject, text in (
            ("gone", '"int"'),
            ("part", USER),
            (":.stage:part", USER),
            ("part", USER.replace("]}", ',{"name":"n","type":"int","default":0}]}')),
        ):
            file.write_text(text)
            schema(urls[0], "register", subject, file)
        file.write_text('{"type":"record","name":"Whole","fields":[{"name":"u","type":"User"}]}')
        schema(urls[0], "register", "a-whole", file, "--reference", "User=part:1")
        schema(urls[0], "delete", "gone")
        schema(urls[0], "config", "part", "--set", "FULL")
        first = schema(urls[0], "export")
    export.write_bytes(first.out)
    with nodes[1]:
        schema(urls[1], "import", export)
        schema(urls[1], "import", export)  # It can be repeated.
        assert schema(urls[1], "export").document == first.document
        assert schema(urls[1], "get", "--id", 4).lines[0].startswith('{"type":"record","name":"Wh')
        file.write_text('"string"')
        done = schema(urls[1], "register", "new", file)
        assert done.lines == ["new version 1 has the schema with id 5"]


@pytest.mark.parametrize("count", [0, 1, PAGE, 3 * PAGE])
@pytest.mark.parametrize("keeps_limit", [True, False])
def test_a_registry_that_knows_no_pages_is_exported_whole(count: int, keeps_limit: bool) -> None:
    """Karapace answers each request with all schemas, so no page is empty."""
    schemas = [{"subject": f"s{at}", "version": 1, "id": at, "schema": "{}"} for at in range(count)]

    def answer(asked: Asked) -> tuple[int, str]:
        path, _, query = asked.path.partition("?")
        if len(registry.asked) > 2 * count + 20:
            return 500, "{}"  # The export has no end.
        if path == "/schemas":
            limit = int(parse_qs(query)["limit"][0]) if keeps_limit else count
            return 200, json.dumps(schemas[:limit])
        if path == "/config":
            return 200, '{"compatibilityLevel": "FULL"}'
        return 404, '{"error_code": 40408, "message": "no level"}'

    with HttpAnswers(answer) as registry:
        assert schema(registry.url, "export").document["schemas"] == schemas


def test_wrong_usage_and_absent_registries_are_told(url: str, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("{}")
    assert "either" in schema(url, "get", status=2).errors
    assert "--type" in schema(url, "register", "a", file, "--type", "xml", status=2).errors
    assert "NAME=SUBJECT" in schema(url, "check", "a", file, "--reference", "b", status=2).errors
    assert "40401" in schema(url, "get", "none", status=1).errors
    absent = f"http://127.0.0.1:{free_port()}"
    assert "no registry answers" in schema(absent, "list", status=1).errors
    assert "must be a URL" in schema("localhost:8081", "list", status=2).errors


def test_the_help_knows_all_types_and_levels() -> None:
    assert set(TYPES) == set(SchemaType)
    assert set(LEVELS) == set(Compatibility)


def test_a_port_that_speaks_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65_536)
                client.sendall(b"hello\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert "no registry answers" in schema(url, "list", status=1).errors
        thread.join()
