"""Whole test files as the items that workers deal with: only the worker that runs a file imports it.

Each worker of pytest-xdist collects all tests, and for that imports all test modules and what those
import. With ``--dist loadfile`` one worker runs all tests of a file, so a worker collects one item a
file. To run it is to collect its tests and to run those; they are reported as always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.fixed_chance import fix_chance

IS_WANTED = "collects_whole_files"  # in what a worker is given
_DEFAULT_MARKS = "not slow"


def are_enough(config: pytest.Config) -> bool:
    """Return whether files are all that is chosen, and no tests by marks, names or failures."""
    options = config.option
    return (
        config.getvalue("dist") == "loadfile"
        and options.markexpr == _DEFAULT_MARKS
        and not (options.keyword or options.lf)
        and not any("::" in argument for argument in config.args)
    )


class WholeFile(pytest.Item):
    """All tests of a file."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.add_marker(pytest.mark.timeout(0))  # Each test has its own.

    def runtest(self) -> None:
        raise AssertionError("its tests are run one by one")

    def run_tests(self, following: pytest.Item | None) -> None:
        """Collect the tests and run them; ``following`` is the item that comes after them."""
        session = self.session
        fix_chance(str(self.path))  # for what the module draws when it is imported
        tests = self._collected()
        index = session.items.index(self)
        for test, next_one in pairwise([*tests, following]):
            assert test is not None
            # Reports about another item than the one that runs are no reports to xdist.
            session.items[index] = test
            self.config.hook.pytest_runtest_protocol(item=test, nextitem=next_one)
            if session.shouldfail or session.shouldstop:
                break
        session.items[index] = self

    def _collected(self) -> Sequence[pytest.Item]:
        assert self.parent is not None
        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        tests = list(self.session.genitems(module))
        self.config.hook.pytest_collection_modifyitems(
            session=self.session, config=self.config, items=tests
        )
        return tests


class FileOfTests(pytest.File):
    """A file that is not imported when it is collected."""

    def collect(self) -> Iterator[WholeFile]:
        """Return its only item."""
        yield WholeFile.from_parent(self, name="all")

    @classmethod
    def of(cls, path: Path, folder: pytest.Collector) -> FileOfTests:
        """Return the file as a node of its folder."""
        return cls.from_parent(folder, path=path)
