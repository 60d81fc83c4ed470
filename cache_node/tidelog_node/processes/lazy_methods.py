"""Compiles the methods of dataclasses when they are first called, not when the class is made.

A node has hundreds of frozen dataclasses. For each of them ``dataclasses`` writes and compiles
seven functions, 0.4 ms in all, and most nodes call few of them: they compare, print and change
nothing. After ``install`` a method is compiled when it is first looked up, and then takes the
place of what stood for it; what it does is unchanged.

A class without a docstring gets its name as one, without the signature of ``__init__``.

It replaces two private functions of the standard library that have been the same from Python 3.11
to 3.12. From 3.13 on there are others, and ``install`` does nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Method = Callable[..., Any]

_VERSIONS = ((3, 11), (3, 12))
_CREATE, _PROCESS = "_create_fn", "_process_class"
_create: Method = getattr(dataclasses, _CREATE, dataclasses.make_dataclass)
_process: Method = getattr(dataclasses, _PROCESS)


def install() -> None:
    """Compile methods late from now on, in this process. A second call does nothing."""
    if sys.version_info[:2] in _VERSIONS:
        setattr(dataclasses, _CREATE, _create_late)
        setattr(dataclasses, _PROCESS, _process_named)


class _LateMethod:
    """A method of a dataclass that is not compiled yet. Threads may do that twice, with one result.

    It is smaller than a function with its names, and a class has seven of them.
    """

    __slots__ = ("__name__", "_args", "_body", "_compiled", "_globals", "_locals", "_return_type")

    def __init__(
        self,
        name: str,
        args: Sequence[str],
        body: Sequence[str],
        names: tuple[Mapping[str, object] | None, dict[str, object] | None],
        return_type: object,
    ) -> None:
        self.__name__ = name
        self._args = ",".join(args)
        self._body = "\n  ".join(body)
        self._globals, self._locals = names
        self._return_type = return_type
        self._compiled: Method | None = None

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        compiled = self._compile()
        for one in owner.__mro__:
            if one.__dict__.get(self.__name__) is self:
                compiled.__qualname__ = f"{one.__qualname__}.{self.__name__}"
                setattr(one, self.__name__, compiled)
        return compiled if instance is None else compiled.__get__(instance, owner)

    def __call__(self, *given: object) -> object:
        """Call the method: ``dataclasses`` wraps ``__repr__``."""
        return self._compile()(*given)

    def _compile(self) -> Method:
        if self._compiled is None:
            self._compiled = _create(
                self.__name__,
                (self._args,),
                (self._body,),
                globals=self._globals,
                locals=None if self._locals is None else dict(self._locals),
                return_type=self._return_type,
            )
        return self._compiled


def _create_late(
    name: str,
    args: Sequence[str],
    body: Sequence[str],
    *,
    globals: Mapping[str, object] | None = None,
    locals: dict[str, object] | None = None,
    return_type: object = dataclasses.MISSING,
) -> _LateMethod:
    """Return a placeholder for the function that ``dataclasses`` would compile."""
    return _LateMethod(name, args, body, (globals, locals), return_type)


def _process_named(cls: type[Any], *options: bool) -> type[Any]:
    """Make a dataclass without having ``dataclasses`` compute its signature."""
    if not cls.__doc__:
        cls.__doc__ = cls.__name__
    made: type[Any] = _process(cls, *options)
    return made
