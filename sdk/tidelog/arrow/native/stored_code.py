"""The kernels' machine code: from a file if there is one, else built by numba and stored.

To load numba and its cached functions takes a second of CPU, in each Python worker of Spark.
A file's code is linked by llvmlite alone, in a twentieth of that. Places of files, in this order:

1. ``code`` beside this module: a wheel has the code for any processor of its platform there.
2. ``__pycache__`` beside this module.
3. ``.cache/tidelog`` in the user's home.

If neither of the last two can be written, every process builds the code. A file runs in the process
as this module does, so it must belong to root, to this user, or to the owner of this module.

A file's name has the digest of the sources, so code of another version is never used.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import pkgutil
import platform
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from tidelog.arrow.native.code_file import Entry, pack_entries, unpack_entries

logger = logging.getLogger(__name__)

_SOURCES = ("code_file", "compiled", "decode_kernels", "kernel_entries", "kernel_values")
_FOLDER = Path(__file__).parent
SHIPPED = _FOLDER / "code"
ANY_PROCESSOR = "generic"
# Numba's arrays count references to their owners. Those of the entries have none: never called.
_NEVER_CALLED = "define void @NRT_MemInfo_call_dtor(ptr %owner) { ret void }"


class MachineCode(NamedTuple):
    """The kernels. Arguments are numbers, and addresses of arrays as numbers."""

    scan_batches: Callable[..., int]
    decode_records: Callable[..., int]
    decode_headers: Callable[..., int]


@cache
def machine_code() -> MachineCode:
    """Return the kernels of this process."""
    return link_entries(find_entries(code_files()) or _built_entries())


def code_files() -> tuple[Path, ...]:
    """Return the places of the file, the one of the wheel first."""
    digest = _digest()
    if digest is None:
        return ()
    processor = hashlib.sha256(
        f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}".encode()
    ).hexdigest()
    places = [SHIPPED / file_name(digest, ANY_PROCESSOR)]
    own = file_name(digest, processor[:12])
    places.append(_FOLDER / "__pycache__" / own)
    with suppress(RuntimeError):  # The user has no home.
        places.append(Path.home() / ".cache" / "tidelog" / own)
    return tuple(places)


def file_name(digest: str, processor: str) -> str:
    """Return the name of the file for a kind of processor."""
    return f"kernels-{sys.platform}-{platform.machine()}-{processor}-{digest[:16]}.bin"


def find_entries(
    files: Sequence[Path], *, owners: Collection[int] | None = None
) -> tuple[Entry, ...] | None:
    """Return the entries of the first file that is there, whole, and one of the owners'."""
    for path in files:
        try:
            data = _read(path, _trusted_owners() if owners is None else owners)
            return unpack_entries(data)
        except (FileNotFoundError, NotADirectoryError):  # This module may be in a zip.
            continue
        except (OSError, ValueError) as error:
            logger.warning(
                "stored machine code cannot be used",
                extra={"path": str(path), "reason": str(error)},
            )
    return None


def store_entries(entries: Sequence[Entry], files: Sequence[Path]) -> Path | None:
    """Write the file to the first place that can be written; ``None`` if there is none."""
    data = pack_entries(entries)
    for path in files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, data)
        except OSError:
            continue
        return path
    return None


def _read(path: Path, owners: Collection[int]) -> bytes:
    with path.open("rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in owners:
            raise PermissionError(f"it belongs to the user {owner}, whose code is not used")
        return file.read()


def _trusted_owners() -> set[int]:
    owners = {0, os.geteuid()}
    with suppress(OSError):  # This module may be in a zip.
        owners.add(Path(__file__).stat().st_uid)
    return owners


def _write(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # for other users of the installation
            Path(file.name).replace(path)
        except OSError:
            # A full disk must not get a file from each process.
            Path(file.name).unlink(missing_ok=True)
            raise


def link_entries(entries: Sequence[Entry]) -> MachineCode:
    """Return the entries' functions. Other entries than this version's have another file name."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_NEVER_CALLED), target)
    for entry in entries:
        engine.add_object_file(llvm.ObjectFileRef.from_data(entry.code))
    engine.finalize_object()
    _engines.append(engine)
    return MachineCode(**dict(_functions(engine, entries)))


_engines: list[llvm.ExecutionEngine] = []  # An engine's end frees its code.


def _functions(
    engine: llvm.ExecutionEngine, entries: Sequence[Entry]
) -> Iterator[tuple[str, Callable[..., int]]]:
    # Numba's calling convention: the addresses of the result and of an error, the arguments, and
    # the status as the result. The kernels raise nothing.
    # Source: numba.core.callconv.CPUCallConv.
    for entry in entries:
        kinds = [ctypes.c_int64 if one == "i" else ctypes.c_void_p for one in entry.arguments]
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)
        function = kind(engine.get_function_address(entry.symbol))
        yield entry.name, _called(function)


def _called(function: Callable[..., int]) -> Callable[..., int]:
    def call(*arguments: int) -> int:
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = function(ctypes.byref(result), ctypes.byref(error), *arguments)
        assert status == 0
        return result.value

    return call


def shipped_file() -> tuple[str, bytes]:
    """Return the name and the content of the file of a wheel.

    The process must run with ``NUMBA_CPU_NAME=generic``. Raises ``RuntimeError`` if the code needs
    numba.
    """
    from tidelog.arrow.native.kernel_entries import build_entries

    built, digest = build_entries(), _digest()
    if not built.is_complete or digest is None:
        raise RuntimeError("this version of numba builds no code that is complete")
    return file_name(digest, ANY_PROCESSOR), pack_entries(built.entries)


def _built_entries() -> tuple[Entry, ...]:
    from tidelog.arrow.native.kernel_entries import build_entries

    built = build_entries()
    if built.is_complete:
        store_entries(built.entries, code_files()[1:])
    return built.entries


def _digest() -> str | None:
    """Return the digest of the sources; ``None`` if there are none."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        try:
            source = pkgutil.get_data("tidelog.arrow.native", f"{name}.py")
        except OSError:
            return None
        if source is None:
            return None
        digest.update(source)
    return digest.hexdigest()
