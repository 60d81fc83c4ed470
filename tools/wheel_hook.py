"""Puts the compiled hot path into a wheel, which is then one for this platform and Python.

Off unless ``HATCH_BUILD_HOOKS_ENABLE=1``: ``make wheel`` sets it. Not for an isolated build:
mypyc wants the types of everything that the compiled modules import.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledWheel(BuildHookInterface[Any]):
    """Compiles, and names each file for the builder."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is written."""
        if version == "editable":
            return  # compiled modules would hide what is edited
        sys.path.insert(0, self.root)
        from tools.compiled import compile_modules

        self._folder = Path(tempfile.mkdtemp())
        compile_modules(self._folder)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for module in self._folder.rglob("*.so"):
            build_data["force_include"][str(module)] = str(module.relative_to(self._folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled once it is in the wheel."""
        if version != "editable":
            shutil.rmtree(self._folder)
