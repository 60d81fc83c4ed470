"""Whole test files as the items that workers deal with: only the worker that runs a file imports it.

Each worker of pytest-xdist collects all tests, and for that imports all test modules and what those
import. With ``--dist loadfile`` one worker runs all tests of a file, so a worker collects one item a
file. To run it is to collect its tests and to run those; they are reported as always.

The process that deals files out knows tests by their reports alone (``TestReports``).
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
        fix_chance(self.nodeid)  # for what the module draws when it is imported
        tests = self._collected()
        if not tests:
            # The test before has left what this file shares with it.
            session._setupstate.teardown_exact(following)
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


class TestReports:
    """Reports that workers have sent, by worker: which test crashed one, and whether any was run."""

    __test__ = False

    def __init__(self) -> None:
        self._last: dict[object, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the last test of each worker, and its phase."""
        self._last[getattr(report, "node", None)] = f"{report.when} of {report.nodeid}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: pytest.TestReport) -> None:
        """Say how far a file had come when its worker crashed."""
        last = self._last.get(getattr(report, "node", None), "nothing")
        report.longrepr = f"{report.longrepr}; its last report is about the {last}"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End as pytest does if no test was run, although there were files."""
        if exitstatus == pytest.ExitCode.OK and not self._last:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
