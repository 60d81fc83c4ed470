"""The AWS templates as they are written."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools import sam


class _Loader(yaml.SafeLoader):
    """Reads ``!Ref x`` as ``{"Ref": "x"}``, the other short forms likewise."""


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        assert isinstance(node, yaml.MappingNode)
        value = loader.construct_mapping(node, deep=True)
    return {suffix: value}


_Loader.add_multi_constructor("!", _short_form)


def template_paths() -> list[Path]:
    """Return the root and the nested stacks."""
    return [sam.TEMPLATE, *sorted(sam.INFRA.glob("*.yaml"))]


@functools.cache
def read_template(path: Path) -> Any:
    """Return the template as it is written."""
    return yaml.load(path.read_text(), Loader=_Loader)


def resources(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield id and resource of every resource of the kind, of all templates."""
    for path in template_paths():
        for name, resource in read_template(path)["Resources"].items():
            if resource["Type"] == kind:
                yield name, resource
