"""``tidelog schema`` commands: a schema registry over its REST API, Tidelog's or another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from tidelog.registry_http import path_segment

from tidelog_cli.failures import FAILED, CommandFailed, UsageError
from tidelog_cli.options import Json, require_choice
from tidelog_cli.output import counted, print_json, print_table
from tidelog_cli.registry.registry_access import DEFAULT_REGISTRY, Registry, registry_client

# Those of tidelog_core, which is not imported for the help. A test compares them.
TYPES = ("AVRO", "JSON", "PROTOBUF")
LEVELS = (
    *("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL"),
    "FULL_TRANSITIVE",
)

CaFile = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="PEM of the authority of the registry's certificate."),
]
Subject = Annotated[str, typer.Argument(help="The subject, such as orders-value.")]
File = Annotated[Path, typer.Argument(dir_okay=False, help="The file with the schema.")]
Type = Annotated[str, typer.Option("--type", help=f"{', '.join(TYPES)}.")]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that it refers to by a name; may be repeated.",
    ),
]


def list_(
    prefix: Annotated[str, typer.Argument(help="Only subjects that begin so.")] = "",
    *,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those too.")] = False,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
    json: Json = False,
) -> None:
    """List the subjects, with the newest version and its id and type."""
    client = registry_client(registry, ca_file)
    query = {"deleted": "true"} if deleted else {}
    names = client.get("/subjects", **query, **({"subjectPrefix": prefix} if prefix else {}))
    rows = []
    for name in names:
        versions = client.get(f"/subjects/{path_segment(name)}/versions", **query)
        found = client.get(f"/subjects/{path_segment(name)}/versions/{versions[-1]}", **query)
        rows.append(
            {
                "subject": name,
                "version": found["version"],
                "id": found["id"],
                "type": found.get("schemaType", TYPES[0]),
            }
        )
    if json:
        print_json(rows)
    else:
        print_table(("subject", "version", "id", "type"), [list(one.values()) for one in rows])


def get(
    subject: Annotated[str | None, typer.Argument(help="The subject; or give --id.")] = None,
    *,
    version: Annotated[str, typer.Option(help="Its version, a number or latest.")] = "latest",
    id: Annotated[int | None, typer.Option("--id", min=1, help="The id of a schema.")] = None,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
    json: Json = False,
) -> None:
    """Print a schema: the newest of a subject, one version of it, or one by its id."""
    if (subject is None) == (id is None):
        raise UsageError("give either a subject or --id")
    client = registry_client(registry, ca_file)
    if id is not None:
        found = client.get(f"/schemas/ids/{id}")
    else:
        found = client.get(
            f"/subjects/{path_segment(subject or '')}/versions/{path_segment(version)}"
        )
    if json:
        print_json(found)
    else:
        print(found["schema"].rstrip("\n"))


def register(
    subject: Subject,
    file: File,
    *,
    schema_type: Type = TYPES[0],
    reference: References = None,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
    json: Json = False,
) -> None:
    """Register a schema under a subject; one that is there already gets no new version."""
    body = _body(file, schema_type, reference)
    client = registry_client(registry, ca_file)
    client.post(f"/subjects/{path_segment(subject)}/versions", body)
    found = client.post(f"/subjects/{path_segment(subject)}", body)
    if json:
        print_json(found)
    else:
        print(f"{subject} version {found['version']} has the schema with id {found['id']}")


def check(
    subject: Subject,
    file: File,
    *,
    schema_type: Type = TYPES[0],
    reference: References = None,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
) -> None:
    """Check whether a schema may become the next version. Exit status 1 if it may not."""
    body = _body(file, schema_type, reference)
    client = registry_client(registry, ca_file)
    path = f"/compatibility/subjects/{path_segment(subject)}/versions"
    found = client.post(path, body, verbose="true")
    if found["is_compatible"]:
        print(f"compatible with {subject}")
        return
    for message in found.get("messages", ()):
        print(message)
    raise typer.Exit(FAILED)


def delete(
    subject: Subject,
    *,
    version: Annotated[
        str | None, typer.Option(help="Only this version, a number or latest.")
    ] = None,
    permanent: Annotated[
        bool, typer.Option("--permanent", help="Remove what was deleted before, for ever.")
    ] = False,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
) -> None:
    """Delete a subject or one version; --permanent removes what was deleted."""
    query = {"permanent": "true"} if permanent else {}
    client = registry_client(registry, ca_file)
    path = f"/subjects/{path_segment(subject)}"
    if version is not None:
        path += f"/versions/{path_segment(version)}"
    found = client.delete(path, **query)
    versions = found if isinstance(found, list) else [found]
    verb = "removed for ever" if permanent else "deleted"
    print(
        f"{counted(len(versions), 'version')} of {subject} {verb}: {', '.join(map(str, versions))}"
    )


def config(
    subject: Annotated[
        str | None, typer.Argument(help="A subject or a context; by default everything.")
    ] = None,
    *,
    compatibility: Annotated[
        str | None, typer.Option("--set", metavar="LEVEL", help=f"{', '.join(LEVELS)}.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Back to the wider level.")] = False,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
) -> None:
    """Show, set or remove the compatibility level."""
    if compatibility is not None and remove:
        raise UsageError("give either --set or --remove")
    client = registry_client(registry, ca_file)
    path = "/config" if subject is None else f"/config/{path_segment(subject)}"
    if compatibility is not None:
        require_choice("--set", compatibility.upper(), LEVELS)
        client.put(path, {"compatibility": compatibility.upper()})
    elif remove:
        client.delete(path)
    print(client.get(path, defaultToGlobal="true")["compatibilityLevel"])


def _body(file: Path, schema_type: str, references: list[str] | None) -> dict[str, object]:
    """Return the body of a request with the schema in a file. Raises ``UsageError``."""
    require_choice("--type", schema_type.upper(), TYPES)
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is no text in UTF-8") from None
    body: dict[str, object] = {"schema": text, "schemaType": schema_type.upper()}
    if references:
        body["references"] = [_reference(one) for one in references]
    return body


def _reference(text: str) -> dict[str, object]:
    name, _, rest = text.partition("=")
    subject, _, version = rest.rpartition(":")
    if not (name and subject and version.isdecimal()):
        raise UsageError(f"--reference {text!r} must be NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}
