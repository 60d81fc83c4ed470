"""What holds for every test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from _pytest.logging import LogCaptureHandler
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.support.fixed_chance import fix_chance
from tests.support.longest_files import place_of, shared_by
from tests.support.started_processes import start_as_for_users
from tests.support.whole_files import (
    IS_WANTED,
    FileOfTests,
    TestReports,
    WholeFile,
    are_enough,
)

start_as_for_users()

# Contexts of whoever runs the tests lead to clusters of their own.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no_settings")

# Nothing is timed in tests: on a busy machine any example may take long. Each run has the same
# examples; ``--hypothesis-profile search`` looks for others.
UNTIMED = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("search", UNTIMED)
hypothesis.settings.register_profile("default", UNTIMED, derandomize=True)
hypothesis.settings.load_profile("default")

# The order of sets is the same in each run. Workers and the processes of tests start with it.
os.environ.setdefault("PYTHONHASHSEED", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; ``make test`` deals files out in this order."""
    items.sort(key=lambda item: place_of(item.nodeid.split("::")[0]))


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> FileOfTests | None:
    """Leave the import of a test module to the worker that runs it, if files are dealt out."""
    is_wanted = getattr(parent.config, "workerinput", {}).get(IS_WANTED, False)
    return FileOfTests.of(module_path, parent) if is_wanted else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the tests of a whole file."""
    if not isinstance(item, WholeFile):
        return None
    item.run_tests(nextitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test find the same ids and draw the same numbers whenever it runs."""
    fix_chance(item.nodeid)


@pytest.fixture
def no_ignored_signals() -> Iterator[None]:
    """Have programs end by signals that the tests' own process may have inherited as ignored.

    A background job of a shell ignores SIGINT and SIGQUIT, one of nohup SIGHUP.
    """
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Take back what a test changes about logging: commands that run in this process set it up."""
    loggers = [logging.getLogger(name) for name in ("", "tidelog")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        for handler in set(logger.handlers) - {*handlers}:
            if not isinstance(handler, LogCaptureHandler):  # Those are pytest's own.
                logger.removeHandler(handler)


class FileScheduling(LoadFileScheduling):
    """Files, and the folders whose tests share what takes longest to start."""

    def _split_scope(self, nodeid: str) -> str:
        return shared_by(super()._split_scope(nodeid))

    def _reschedule(self, node: WorkerController) -> None:
        # A worker begins an item once it has the next one, or knows that there is none. xdist gives
        # a worker the next unit if it has two tests left: that would reserve three files for each.
        # A worker that replaces a crashed one has none, so it needs two at once.
        if not are_enough(self.config):
            super()._reschedule(node)
            return
        while not node.shutting_down and (
            not self.workqueue or self._pending_of(self.assigned_work[node]) < 2
        ):
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker whether it collects whole files."""
    node.workerinput[IS_WANTED] = are_enough(node.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Deal the tests out, if that is to be done by files."""
    if are_enough(config):
        config.pluginmanager.register(TestReports())
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None
