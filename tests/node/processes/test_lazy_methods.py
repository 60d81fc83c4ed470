"""Dataclasses whose methods are compiled when they are first called do what others do."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLASSES = '''
import copy, pickle, sys
if sys.argv[1] == "late":
    from tidelog_node.processes import lazy_methods
    lazy_methods.install()
    lazy_methods.install()
compiled = []
def note(event, arguments):
    if event == "exec" and arguments[0].co_filename == "<string>":
        compiled.append(arguments[0])
sys.addaudithook(note)
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, asdict, dataclass, field, replace

@dataclass(frozen=True, slots=True, order=True)
class Point:
    """With all that a dataclass can have."""
    x: int
    y: int = 2
    names: list = field(default_factory=list, compare=False)

@dataclass
class Plain:
    first: int
    twice: InitVar[int] = 1
    rest: object = None
    def __post_init__(self, twice):
        self.first *= twice

@dataclass
class Child(Plain):
    _: KW_ONLY
    own: str = "c"
    def __init__(self, first):
        super().__init__(first, 3)
        self.own = "made"

@dataclass(frozen=True, eq=False)
class Same:
    a: int
    def __hash__(self):
        return 7

made = len(compiled)

def show(what):
    try:
        print(what())
    except Exception as error:
        print(type(error).__name__, error)

point, plain = Point(1), Plain(2, 2)
plain.rest = plain
for what in (
    lambda: point, lambda: plain, lambda: Child(5), lambda: Point(y=1), lambda: Point(1, 2, [], 4),
    lambda: point == Point(1, names=[3]), lambda: point == plain, lambda: point < Point(3),
    lambda: point >= Point(3), lambda: sorted([Point(3), point]), lambda: point < 1,
    lambda: hash(point) == hash(Point(1)), lambda: hash(plain), lambda: hash(Same(1)),
    lambda: Same(1) == Same(1), lambda: setattr(point, "x", 3), lambda: setattr(point, "z", 3),
    lambda: delattr(point, "x"), lambda: setattr(Same(1), "b", 3), lambda: replace(point, y=9),
    lambda: asdict(point), lambda: copy.copy(point), lambda: pickle.loads(pickle.dumps(point)),
    lambda: Point.__match_args__, lambda: Point.__init__.__qualname__, lambda: Point.__doc__,
    lambda: Plain.__repr__(plain), lambda: Point.__eq__(point, point), lambda: Child.__mro__,
    lambda: {point: 1}[Point(1)], lambda: Plain.__eq__(Plain(1), Child(1)),
):
    show(what)
print(made, file=sys.stderr)
'''


def run(kind: str) -> tuple[str, int]:
    """Return what the script prints, and how many methods were compiled with the classes."""
    done = subprocess.run(
        [sys.executable, "-c", CLASSES, kind], capture_output=True, text=True, check=True
    )
    return done.stdout, int(done.stderr)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="nothing is replaced there")
def test_methods_that_are_compiled_late_do_the_same() -> None:
    at_once, many = run("at once")
    late, few = run("late")
    assert late == at_once
    assert "FrozenInstanceError cannot assign to field 'x'" in late
    assert many > 20
    assert few == 0
