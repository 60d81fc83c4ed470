"""Executes modules when they are first used, not when they are imported.

kio has a module for every message and version, with dataclasses that take milliseconds to
create. Importing those of all APIs takes half of a node's start and a fifth of its memory, and most
nodes use few of them. After ``install``, ``from kio.schema.metadata.v13 import request`` returns a
module that is executed when an attribute is first read. So does ``import re2``: see ``LIBRARIES``.

A lazy module may be first used by any thread. One lock makes the others wait until it has been
executed, so they never see a part of it; ``importlib.util.LazyLoader`` has no lock before Python
3.12.2. The lock cannot deadlock with those of the import system: all other modules that a lazy one
imports when it is executed use no lazy ones while they are imported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Protocol

LIBRARIES = frozenset(
    {
        "asyncio.sslproto",  # nodes have transports of their own, see ``connections``
        "bz2",  # of shutil, which only asks whether it is there
        "cramjam",  # for compressed batches
        "crc32c",  # all but its function of that name, see ``Later``
        "difflib",  # for errors about misspelt names
        "hashlib",  # loads OpenSSL, as do the next and ``ssl``
        "hmac",
        "http.client",  # for an issuer's keys
        "inspect",  # with ``ast`` and ``dis``
        "ipaddress",  # for rules about addresses
        "lz4.frame",
        "lzma",
        "pickle",  # for messages of other processes
        "re2",  # for rules about certificates' names, and for patterns
        "secrets",
        "ssl",  # for listeners with TLS, and for other nodes
        "typing_extensions",  # all but a type of kio's, see ``Later``
        "tempfile",
    }
)
_VERSION = re.compile(r"kio\.schema\.(?!\w+_header\.)\w+\.v\d+")  # every API uses the headers
_MESSAGE = re.compile(_VERSION.pattern + r"\.(request|response|data)")
_lock = RLock()


def install() -> None:
    """Import messages and libraries lazily from now on, in this process.

    A second call does nothing. Modules that were imported before stay as they are.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Loader(Protocol):
    """A loader of the import system, as far as it is used here."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module's code."""


class _Finder:
    """Finds modules on the ordinary path, and replaces or wraps the loader of some."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: _Nothing | None = None
        if fullname.startswith("kio.schema."):
            if _VERSION.fullmatch(fullname) is not None:
                loader = _Nothing()
            elif _MESSAGE.fullmatch(fullname) is None:
                return None
        elif fullname not in LIBRARIES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            replaced = Later(spec.loader) if loader is None else loader
            spec.loader = replaced  # type: ignore[assignment]
        return spec


class _Nothing:
    """Leaves a version's package empty, because its own code imports all of its messages."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return ``None`` for the default module type."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""


class Later:
    """A loader that leaves the execution to the module."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that executes itself."""
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Only note how the module will be executed."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # type: ignore[assignment]
        vars(module)["_unexecuted"] = self._loader
        if module.__name__ == "crc32c":
            # Its function is used everywhere. The package's own code also reads its version from
            # its metadata, which takes 14 ms, and 1.5 MB of modules.
            vars(module)["crc32c"] = import_module("crc32c._crc32c").crc32c
        elif module.__name__ == "typing_extensions":
            # kio annotates parameters with it. The rest takes 10 ms, and 1 MB with ``inspect``.
            vars(module)["Buffer"] = bytes | bytearray | memoryview


class _LazyModule(ModuleType):
    """A module that is executed when an attribute is read that it does not have yet."""

    def __getattr__(self, name: str) -> object:
        names = vars(self)
        if name == "__path__":  # ``from`` asks whether it is a package, which would have one.
            raise AttributeError(name)
        with _lock:
            # None: this thread executes it just now, or another has executed it before.
            loader: _Loader | None = names.pop("_unexecuted", None)
            if loader is not None:
                try:
                    loader.exec_module(self)
                except BaseException:
                    names["_unexecuted"] = loader  # The next one fails in the same way.
                    raise
                self.__class__ = ModuleType  # type: ignore[assignment]
        if name not in names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value: object = names[name]
        return value
