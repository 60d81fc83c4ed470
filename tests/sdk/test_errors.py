"""One tree of errors: what a node raises is what a client catches."""

from __future__ import annotations

import inspect

import pytest
import tidelog.errors
import tidelog_core.errors
from kio.schema.errors import ErrorCode
from tidelog.errors import NodeError, TidelogError, error_for


def declared(module: object) -> dict[str, type[TidelogError]]:
    """Return the errors that the module offers, by name."""
    return {
        name: cls
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, TidelogError)
    }


CORE, SDK = declared(tidelog_core.errors), declared(tidelog.errors)
# Those that a code alone can make, which have its name.
PLAIN = {
    cls.code: cls
    for name, cls in CORE.items()
    if name.lower() == cls.code.name.replace("_", "") and cls.__init__ is TidelogError.__init__
}


def test_a_name_is_one_class() -> None:
    for name in CORE.keys() & SDK.keys():
        assert CORE[name] is SDK[name], name


@pytest.mark.parametrize("code", PLAIN, ids=lambda code: code.name)
def test_a_code_comes_back_as_the_class_that_the_node_raised(code: ErrorCode) -> None:
    assert type(error_for(code, "why")) is PLAIN[code]


def test_names_of_before_are_the_same_classes() -> None:
    assert tidelog.errors.GroupNotEmpty is tidelog.errors.NonEmptyGroup
    assert set(tidelog.errors.__all__) <= set(dir(tidelog.errors))


def test_a_code_without_a_class_is_a_node_error() -> None:
    error = error_for(ErrorCode.unstable_offset_commit, None, about="g")
    assert isinstance(error, NodeError)
    assert (error.code, str(error)) == (
        ErrorCode.unstable_offset_commit,
        "g: unstable offset commit",
    )
    assert error.hint == ""
