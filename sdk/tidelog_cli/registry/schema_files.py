"""``tidelog schema export`` and ``import``: all schemas of a registry in a file, with their ids."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from tidelog.registry_http import path_segment

from tidelog_cli.failures import CommandFailed
from tidelog_cli.output import counted, note
from tidelog_cli.registry.registry_access import DEFAULT_REGISTRY, Registry, registry_client
from tidelog_cli.registry.registry_client import RegistryClient, RegistryFailed
from tidelog_cli.registry.schemas import CaFile

PAGE = 100  # schemas of full length fit into one answer
BEHIND_ALL = 2**31 - 1  # an offset that no schema has
NO_OWN_LEVEL = 40408
KEPT = ("schemaType", "references", "metadata", "ruleSet", "schema", "version", "id")


def export(
    *,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
) -> None:
    """Print all schemas as JSON: ids, versions, deleted ones too, and compatibility levels."""
    client = registry_client(registry, ca_file)
    schemas = _all_schemas(client)
    levels = {"": client.get("/config")["compatibilityLevel"]}
    for subject in dict.fromkeys(one["subject"] for one in schemas):
        try:
            found = client.get(f"/config/{path_segment(subject)}")
        except RegistryFailed as error:
            if error.code != NO_OWN_LEVEL:
                raise
        else:
            levels[subject] = found["compatibilityLevel"]
    print(json_text.dumps({"schemas": schemas, "levels": levels}, indent=1, ensure_ascii=False))


def _all_schemas(client: RegistryClient) -> list[dict[str, Any]]:
    """Return all versions, deleted ones too.

    A page may be shorter than its limit, and repeat some of the one before: a registry leaves out
    what it cannot read. So only an empty page is the end. A registry that ignores ``offset``
    (Karapace) has none: it answers the same also behind the end.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    offset, last = 0, None
    while page := _page(client, offset, PAGE):
        if page == last and (whole := _page(client, BEHIND_ALL, BEHIND_ALL)):
            return whole
        found |= {(one["subject"], one["version"]): one for one in page}
        offset, last = offset + len(page), page
    return list(found.values())


def _page(client: RegistryClient, offset: int, limit: int) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] = client.get(
        "/schemas", deleted="true", offset=str(offset), limit=str(limit)
    )
    return page


def import_(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="What `export` printed.")],
    *,
    registry: Registry = DEFAULT_REGISTRY,
    ca_file: CaFile = None,
) -> None:
    """Register the schemas of an export with their ids; interrupted, run it again.

    The registry should be new: an id that has another schema ends the import.
    """
    schemas, levels = _read(file)
    client = registry_client(registry, ca_file)
    contexts = sorted({_context(one["subject"]) for one in schemas} | {""})
    for context in contexts:
        client.put(_mode(context), {"mode": "IMPORT"}, force="true")
    try:
        for one in ordered(schemas):
            body = {name: one[name] for name in KEPT if name in one}
            client.post(f"/subjects/{path_segment(one['subject'])}/versions", body)
        for one in reversed(ordered([one for one in schemas if one.get("deleted")])):
            client.delete(f"/subjects/{path_segment(one['subject'])}/versions/{one['version']}")
    finally:
        for context in contexts:
            client.put(_mode(context), {"mode": "READWRITE"})
    for subject, level in levels.items():
        path = f"/config/{path_segment(subject)}" if subject else "/config"
        client.put(path, {"compatibility": level})
    note(f"{counted(len(schemas), 'version')} imported")


def _read(file: Path) -> tuple[Sequence[dict[str, Any]], Mapping[str, str]]:
    try:
        found = json_text.loads(file.read_text())
        return sorted(found["schemas"], key=lambda one: one["id"]), found["levels"]
    except (ValueError, KeyError, TypeError):
        raise CommandFailed(f"{file} is not what `tidelog schema export` prints") from None


def _context(subject: str) -> str:
    """Return the prefix of a subject's context, "" for the default one."""
    return f":{subject[1:].partition(':')[0]}:" if subject.startswith(":.") else ""


def _mode(context: str) -> str:
    return f"/mode/{path_segment(context)}" if context else "/mode"


def ordered(schemas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return schemas, each after those that it refers to."""
    by_version = {(one["subject"], one["version"]): one for one in schemas}
    ordered: dict[tuple[str, int], dict[str, Any]] = {}
    for one in schemas:
        waiting = [one]
        while waiting:
            last = waiting[-1]
            needed = [
                by_version[key]
                for reference in last.get("references", ())
                for key in _targets(last, reference)
                if key in by_version and key not in ordered and by_version[key] not in waiting
            ]
            if needed:
                waiting.append(needed[0])
            else:
                ordered[last["subject"], last["version"]] = waiting.pop()
    return list(ordered.values())


def _targets(one: Mapping[str, Any], reference: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the version that a reference means: in the schema's context, if it names none."""
    subject, version = reference["subject"], reference["version"]
    prefix = "" if subject.startswith(":.") else _context(one["subject"])
    return [(prefix + subject, version)]
