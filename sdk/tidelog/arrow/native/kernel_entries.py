"""Entries of the decoding kernels that take addresses, and their machine code.

Only a process that builds the machine code imports this module: it loads numba.

A kernel's array is given by its address. Its length follows if the kernel uses it: a kernel never
asks for the length of an array that it only writes to, and those get the length 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import llvmlite.binding as llvm
import numba

from tidelog.arrow.native.code_file import Entry
from tidelog.arrow.native.decode_kernels import decode_headers, decode_records, scan_batches
from tidelog.arrow.native.kernel_values import COLUMN_COUNT

_numba = cast("Any", numba)  # Its types know only a part of it.
carray, int64 = _numba.carray, _numba.types.int64
_BYTES, _INTS, _LONGS = (
    _numba.types.CPointer(kind) for kind in (_numba.types.uint8, _numba.types.int32, int64)
)
_SECTION_COLUMNS = 8
# Functions of numba that the code may name: ``stored_code`` has its own.
_KNOWN_NAMES = ("NRT_MemInfo_call_dtor",)


@dataclass(frozen=True, slots=True)
class BuiltCode:
    """The entries, compiled."""

    entries: tuple[Entry, ...]
    is_complete: bool  # whether it can be linked in a process without numba


def _scan_batches(data: Any, size: int, table: Any, row_max: int, found: Any) -> int:
    found[0], found[1], found[2] = scan_batches(
        carray(data, (size,)), carray(table, (row_max, COLUMN_COUNT))
    )
    return 0


def _decode_records(  # noqa: PLR0917
    data: Any,
    size: int,
    sections: Any,
    section_count: int,
    offsets_from: int,
    offsets_to: int,
    longs: Any,
    row_max: int,
    header_starts: Any,
    timestamp_types: Any,
    key_ends: Any,
    keys: Any,
    key_valid: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
    found: Any,
) -> int:
    found[0], found[1], found[2], found[3], found[4], found[5] = decode_records(
        carray(data, (size,)),
        carray(sections, (section_count, _SECTION_COLUMNS)),
        offsets_from,
        offsets_to,
        carray(longs, (2, row_max)),
        carray(header_starts, (0,)),
        carray(timestamp_types, (0,)),
        carray(key_ends, (0,)),
        carray(keys, (0,)),
        carray(key_valid, (0,)),
        carray(value_ends, (0,)),
        carray(values, (0,)),
        carray(value_valid, (0,)),
    )
    return 0


def _decode_headers(  # noqa: PLR0917
    data: Any,
    size: int,
    starts: Any,
    row_count: int,
    list_ends: Any,
    list_valid: Any,
    key_ends: Any,
    keys: Any,
    value_ends: Any,
    values: Any,
    value_valid: Any,
) -> int:
    decode_headers(
        carray(data, (size,)),
        carray(starts, (row_count,)),
        carray(list_ends, (0,)),
        carray(list_valid, (0,)),
        carray(key_ends, (0,)),
        carray(keys, (0,)),
        carray(value_ends, (0,)),
        carray(values, (0,)),
        carray(value_valid, (0,)),
    )
    return 0


_ENTRIES: dict[str, tuple[Callable[..., int], tuple[Any, ...]]] = {
    "scan_batches": (_scan_batches, (_BYTES, int64, _LONGS, int64, _LONGS)),
    "decode_records": (
        _decode_records,
        (
            *(_BYTES, int64, _LONGS, int64, int64, int64, _LONGS, int64, _LONGS, _INTS),
            *(_INTS, _BYTES, _BYTES, _INTS, _BYTES, _BYTES, _LONGS),
        ),
    ),
    "decode_headers": (
        _decode_headers,
        (
            *(_BYTES, int64, _LONGS, int64, _INTS, _BYTES),
            *(_INTS, _BYTES, _INTS, _BYTES, _BYTES),
        ),
    ),
}


def build_entries() -> BuiltCode:
    """Compile the kernels."""
    entries = []
    names: set[str] = set()
    for name, (function, arguments) in _ENTRIES.items():
        kernel = _numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
        kernel.compile(int64(*arguments))
        [built] = kernel.overloads.values()
        _, _, (code, _) = built.library.serialize_using_object_code()
        letters = "".join(map(_letter, arguments))
        entries.append(Entry(name, built.fndesc.llvm_func_name, letters, code))
        names |= _names_of_others(built.library.get_llvm_str())
    return BuiltCode(tuple(entries), is_complete=names.issubset(_KNOWN_NAMES))


def _names_of_others(assembly: str) -> set[str]:
    """Return the names of the functions that the code calls and does not have."""
    module = llvm.parse_assembly(assembly)
    return {
        one.name
        for one in module.functions
        if one.is_declaration and not one.name.startswith("llvm.")
    }


def _letter(argument: Any) -> str:
    return "i" if argument is int64 else "p"
