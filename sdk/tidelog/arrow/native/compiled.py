"""Compiled functions: machine code by numba, and an intrinsic that copies bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.cgutils import raw_memmove
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` compiled, without the interpreter lock while it runs.

    The machine code is cached beside the source, or in the user's cache folder. If an executor
    has neither (a read-only image without a home), every worker compiles again.
    """
    try:
        return cast("Callable[P, R]", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # «no locator available»
        return cast("Callable[P, R]", numba.njit(nogil=True)(function))


@intrinsic
def _memmove(_typing: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_type, _, source_type, _, _ = signature.args
        to = make_array(target_type)(context, builder, arguments[0])  # type: ignore[no-untyped-call]
        of = make_array(source_type)(context, builder, arguments[2])  # type: ignore[no-untyped-call]
        raw_memmove(  # type: ignore[no-untyped-call]
            builder,
            builder.gep(to.data, [arguments[1]]),
            builder.gep(of.data, [arguments[3]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    return numba.types.void(target, at, source, start, size), generate


@compiled
def copy_bytes(
    source: NDArray[np.uint8], start: int, size: int, target: NDArray[np.uint8], at: int
) -> None:
    """Copy ``size`` bytes, also to a place that overlaps.

    Only for compiled callers that have checked the bounds. Two to four times as fast, in records
    per second, as a loop or a slice assignment.
    """
    _memmove(target, at, source, start, size)  # type: ignore[call-arg]
