"""Creates the classes of protocol messages on first use.

kio has a module for every message and version, with dataclasses that take milliseconds to
create. Importing those of all APIs takes half of a node's start and a fifth of its memory, and most
nodes use few of them. After ``install``, ``from kio.schema.metadata.v13 import request`` returns a
module that is executed when an attribute is first read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_VERSION = re.compile(r"kio\.schema\.(?!\w+_header\.)\w+\.v\d+")  # every API uses the headers
_MESSAGE = re.compile(_VERSION.pattern + r"\.(request|response|data)")


def install() -> None:
    """Import messages lazily from now on, in this process. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules on the ordinary path, and replaces or wraps the loader of messages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_message = _MESSAGE.fullmatch(fullname) is not None
        if not is_message and _VERSION.fullmatch(fullname) is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader) if is_message else _Nothing()
        return spec


class _Nothing(Loader):
    """Leaves a version's package empty, because its own code imports all of its messages."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return ``None`` for the default module type."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""
