"""Compiles the hot path into .cache/compiled: ``python -m tools.compiled``.

The interpreter takes most of a small request's time, so the modules used by every Produce and
Fetch are compiled with mypyc, from unchanged source that still runs without a compiler.
The source tree contains no compiled modules, because they would hide later edits.
``.cache/compiled`` has copies of the packages with the compiled modules beside them; put it first
into ``PYTHONPATH`` to run those. A wheel gets them with ``HATCH_BUILD_HOOKS_ENABLE=1``
(``tools/wheel_hook.py``).

A compiled function checks the types of its arguments. An instance has only the attributes that its
class declares. An instance of a frozen dataclass cannot be pickled, so values for other processes
are named tuples. Generic values are named tuples too, because a generic dataclass cannot be
imported. The bounds of a slice are evaluated twice, so they may have no effect
(``tests/compiled/test_slices.py``). Otherwise compiled code behaves like the source. ``make test``
tests both.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from importlib.metadata import version
from pathlib import Path

from tools.places import ROOT

_CORE, _NODE = "core/tidelog_core", "cache_node/tidelog_node"
MODULES = (
    f"{_CORE}/clock.py",
    f"{_CORE}/fetch_session.py",
    *(f"{_CORE}/quotas/{name}.py" for name in ("token_bucket", "windowed_rate")),
    *(f"{_CORE}/records/{name}.py" for name in ("decode", "header", "validation", "varint")),
    *(
        f"{_CORE}/log/{name}.py"
        for name in (
            *("append_checks", "checkpoint", "local_log", "log_appender", "log_start"),
            *("producers/log_producers", "producers/producer_state", "producers/staged_append"),
            *("readable_log", "segments/log_segments", "segments/offset_index"),
            *("segments/segment", "segments/segment_indexes", "segments/time_index"),
            *("segments/txn_index", "unified_log", "values"),
        )
    ),
    *(
        f"{_CORE}/diskless/chain/{name}.py"
        for name in ("chain_object", "chain_writer", "noted_ranges", "put_pace", "steady_time")
    ),
    f"{_CORE}/diskless/wal/scan.py",
    *(f"{_CORE}/tier/{name}.py" for name in ("key_hashes", "segment_scan")),
    *(
        f"{_CORE}/replication/{name}.py"
        for name in (
            *("follower_state", "leader/follower_progress", "leader/leader_commits"),
            *("leader/leader_conversion", "leader/leader_hand_over", "leader/leader_state"),
            *("leader/led_log", "leader/pending_acks", "leader/proposals", "leader/rules"),
        )
    ),
    *(
        f"{_NODE}/{name}.py"
        for name in (
            *("answers", "counters", "dispatch", "low_water_mark", "replicas/replica"),
            *("replicas/replica_manager", "replicas/role", "replicas/role_changes"),
            *("requests/routes", "requests/session"),
        )
    ),
    *(
        f"{_NODE}/connections/{name}.py"
        for name in (
            *("answer_queue", "answer_writer", "chunk_sender", "connection", "control_requests"),
            *("frame_receiver", "kept_frames", "loop_buffers", "mute", "node_transport"),
            *("segment_sender", "ssl_socket_senders", "tls_transport", "transport"),
        )
    ),
    f"{_NODE}/authorization/access.py",
    *(
        f"{_NODE}/follower/{name}.py"
        for name in ("fetched_answer", "fetcher", "followed", "turn_room", "wire")
    ),
    *(
        f"{_NODE}/handlers/fetch/{name}.py"
        for name in (
            *("fetch_lists", "fetch_sessions", "full_fetch", "handler", "listed_fetch", "reading"),
            *("served_fetch", "serving", "session_fetch"),
        )
    ),
    *(
        f"{_NODE}/handlers/produce/{name}.py"
        for name in (
            *("access", "answers", "appends", "batch", "gateway_handoff", "handler", "partitions"),
            *("pending_answers", "refused_batches", "waits"),
        )
    ),
    *(
        f"{_NODE}/throttling/{name}.py"
        for name in ("client_limits", "meters", "rate_limit", "request_timer", "throttle")
    ),
    *(
        f"{_NODE}/wire/{name}.py"
        for name in ("fetch", "fetch_answer", "fetch_list", "primitives", "produce")
    ),
)
PACKAGES = (_CORE, _NODE)
OVERLAY = ROOT / ".cache" / "compiled"
OVERLAY_VARIABLE = "TIDELOG_OVERLAY"  # names another folder, for wheels of another Python
STAMP = ".source"  # a file with the hash of the folder's source
# Of modules that are not compiled, only the types count: `make types` checks them. They import
# packages that an environment which compiles lacks, such as numpy.
MYPY_OPTIONS = ("--config-file", str(ROOT / "pyproject.toml"), "--follow-imports", "silent")
_GROUP = "tidelog"  # of mypyc: one library has the code of all modules
# For Linux. A node has all of the library in memory, so it is without functions that nothing calls,
# and without names that only itself uses.
_COMPILER_OPTIONS = (
    *("-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"),
    # To look for it, gcc reads the file from its start again and again: most of the time it took.
    "-Wno-misleading-indentation",
)
_LINKER_OPTIONS = ("-Wl,--gc-sections",)
# A module's own file has one function, which calls the library: two pages instead of five.
_LINKER_OPTIONS_OF_MODULES = (*_LINKER_OPTIONS, "-Wl,-z,noseparate-code,-z,norelro")


def compile_modules(into: Path) -> None:
    """Compile ``MODULES`` into a folder, laid out as packages are. Needs mypy and a C compiler.

    Raises ``SystemExit`` if either is missing.
    """
    from mypyc.build import mypycify
    from setuptools import setup

    with tempfile.TemporaryDirectory() as scratch:
        extensions = mypycify(
            [
                *MYPY_OPTIONS,
                *("--cache-dir", str(ROOT / ".cache" / "mypyc")),
                *(str(ROOT / module) for module in MODULES),
            ],
            opt_level="3",
            debug_level="0",
            group_name=_GROUP,
            target_dir=scratch,
        )
        if sys.platform == "linux":
            for one in extensions:
                is_library = one.name == f"{_GROUP}__mypyc"
                # Not in place: mypyc has one list for all of them.
                one.extra_compile_args = [*one.extra_compile_args, *_COMPILER_OPTIONS]
                linker_options = _LINKER_OPTIONS if is_library else _LINKER_OPTIONS_OF_MODULES
                one.extra_link_args = [*one.extra_link_args, *linker_options]
        arguments = ["--quiet", "build_ext", "--build-lib", str(into), "--build-temp", scratch]
        setup(name=_GROUP, packages=[], ext_modules=extensions, script_args=arguments)


def write_overlay(overlay: Path = OVERLAY) -> Path:
    """Update the folder if the source has changed, and return it."""
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
        # Processes that may write no bytecode would compile every module at each start.
        compileall.compile_dir(fresh, quiet=1, stripdir=fresh, prependdir=overlay)
        (fresh / STAMP).write_text(source)
        shutil.rmtree(overlay)
        fresh.rename(overlay)
    return overlay


def _source_hash() -> str:
    builder = f"{sys.version} {sysconfig.get_platform()} {version('mypy')}"
    options = _COMPILER_OPTIONS, _LINKER_OPTIONS, _LINKER_OPTIONS_OF_MODULES
    seen = hashlib.sha256(f"{builder} {options} {MODULES}".encode())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            seen.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()


if __name__ == "__main__":
    os.chdir(ROOT)
    print(write_overlay().relative_to(ROOT))
