"""The hot path as machine code: ``python -m tools.compiled`` makes .cache/compiled.

What a small request costs is nearly all the interpreter's, so the modules that every Produce
and Fetch goes through are compiled with mypyc: from the same source, without changes, which
stays what runs wherever there is no compiler. Nothing is compiled in the source tree, where it
would hide later edits. ``.cache/compiled`` holds copies of the packages with the compiled
modules beside them; who puts it first into ``PYTHONPATH`` runs those. A wheel gets them with
``HATCH_BUILD_HOOKS_ENABLE=1`` (``tools/wheel_hook.py``).

Compiled code checks types where it is called, an instance takes only the attributes that its
class names, and one of a frozen dataclass cannot be pickled: what goes to another process is a
named tuple. So is what is generic, since no generic dataclass can be imported. Otherwise it does
what the source says. ``make test`` asks both.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tools.places import ROOT

_CORE, _NODE = "core/tidelog_core", "cache_node/tidelog_node"
MODULES = (
    f"{_CORE}/fetch_session.py",
    *(f"{_CORE}/records/{name}.py" for name in ("header", "validation")),
    *(
        f"{_CORE}/log/{name}.py"
        for name in (
            *("append_checks", "appending", "checkpoint", "local_log", "log_segments"),
            *("log_start", "offset_index", "producer_state", "segment", "segment_indexes"),
            *("time_index", "txn_index", "unified_log", "values"),
        )
    ),
    *(
        f"{_CORE}/replication/{name}.py"
        for name in ("follower_progress", "follower_state", "leader_state", "owed_acks")
    ),
    *(
        f"{_NODE}/{name}.py"
        for name in (
            *("connection", "dispatch", "fetch_lists", "fetch_sessions"),
            *("owed_reply", "replica", "replicas"),
        )
    ),
    *(f"{_NODE}/follower/{name}.py" for name in ("fetcher", "followed", "wire")),
    *(
        f"{_NODE}/handlers/{name}.py"
        for name in (
            "fetch",
            "fetch_reading",
            "listed_fetch",
            "owed_answers",
            "produce",
            "served_fetch",
        )
    ),
    f"{_NODE}/replication/role.py",
    *(
        f"{_NODE}/wire/{name}.py"
        for name in ("fetch", "fetch_answer", "fetch_list", "primitives", "produce")
    ),
)
PACKAGES = (_CORE, _NODE)
OVERLAY = ROOT / ".cache" / "compiled"
STAMP = ".source"  # says of which source a folder is


def compile_modules(into: Path) -> None:
    """Compile ``MODULES`` into a folder, laid out as packages are. Needs mypy and a C compiler.

    Raises ``SystemExit`` where there is none.
    """
    from mypyc.build import mypycify
    from setuptools import setup

    with tempfile.TemporaryDirectory() as scratch:
        extensions = mypycify(
            [
                *("--config-file", str(ROOT / "pyproject.toml")),
                *("--cache-dir", str(ROOT / ".cache" / "mypyc")),
                *(str(ROOT / module) for module in MODULES),
            ],
            opt_level="3",
            debug_level="0",
            group_name="tidelog",
            target_dir=scratch,
        )
        arguments = ["--quiet", "build_ext", "--build-lib", str(into), "--build-temp", scratch]
        setup(name="tidelog", packages=[], ext_modules=extensions, script_args=arguments)


def write_overlay(overlay: Path = OVERLAY) -> Path:
    """Bring the folder up to date and return it; nothing is compiled that has not changed."""
    overlay.mkdir(parents=True, exist_ok=True)
    stamp, source = overlay / STAMP, _source_hash()
    if stamp.exists() and stamp.read_text() == source:
        return overlay
    with tempfile.TemporaryDirectory(dir=overlay.parent) as scratch:
        fresh = Path(scratch) / "compiled"
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, fresh / Path(package).name, ignore=ignored)
        compile_modules(fresh)
        (fresh / STAMP).write_text(source)
        shutil.rmtree(overlay)
        fresh.rename(overlay)
    return overlay


def _source_hash() -> str:
    seen = hashlib.sha256(f"{sys.version} {version('mypy')} {MODULES}".encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            seen.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()


if __name__ == "__main__":
    os.chdir(ROOT)
    print(write_overlay().relative_to(ROOT))
