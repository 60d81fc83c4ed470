"""Workers that deal with whole files report the tests in them as always."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.longest_files import LONGEST_FILES, WHOLE_FOLDERS
from tools.places import ROOT

PLUGINS = ("xdist", "pytest_timeout", "tests.conftest")
IMPORTED = """
from pathlib import Path
with (Path(__file__).parent / "imports").open("a") as file:
    file.write(f"{__name__}\\n")
"""
FILES = {
    "test_several": """
import pytest

@pytest.fixture(scope="module")
def numbers():
    yield [1, 2, 3]

@pytest.mark.parametrize("number", [1, 2, 3])
def test_passes(numbers, number):
    assert number in numbers

def test_fails():
    assert not "here"

@pytest.mark.slow
def test_is_not_chosen():
    assert not "chosen"
""",
    "test_broken": "import of_nothing_that_exists",
    "test_skipped": "import pytest\npytest.skip('not here', allow_module_level=True)",
    "test_one": "def test_one(): pass",
    "test_other": "def test_other(): pass",
}


CRASHES_ONCE = """
import os
from pathlib import Path

def test_before(): pass

def test_crashes():
    first = Path(__file__).parent / "first"
    if not first.exists():
        first.touch()
        os._exit(1)
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of the files."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(IMPORTED + text)
    return tmp_path


def test_the_files_and_folders_that_begin_first_are_there() -> None:
    assert [name for name in (*WHOLE_FOLDERS, *LONGEST_FILES) if not (ROOT / name).exists()] == []


def test_tests_of_files_that_one_worker_imports_are_run_and_reported_one_by_one(
    files: Path,
) -> None:
    done = _run(files, "-n", "2", files)
    assert done.returncode == 1, done.stdout
    assert "1 failed, 5 passed, 1 skipped, 1 error" in _summary(done), done.stdout
    for line in (
        "PASSED .*test_several.py::test_passes.2.",
        "FAILED .*test_several.py::test_fails",
        "ERROR .*test_broken.py",
        "PASSED .*test_other.py::test_other",
    ):
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), done.stdout
    imports = Counter((files / "imports").read_text().split())
    assert imports == dict.fromkeys(FILES, 1)


@pytest.mark.parametrize(
    ("options", "summary"),
    [
        (("-k", "one or 2", "test_several.py", "test_one.py"), "2 passed"),
        (("test_several.py::test_passes", "test_one.py"), "4 passed"),
        (("--deselect", "test_several.py::test_fails", "test_several.py"), "3 passed"),
    ],
    ids=("names", "ids", "deselected"),
)
def test_only_the_tests_that_are_chosen_are_run(
    files: Path, options: tuple[str, ...], summary: str
) -> None:
    done = _run(files, *options)
    assert f"= {summary} in" in _summary(done), done.stdout
    assert done.returncode == 0


def test_a_file_that_cannot_be_imported_is_a_failure_even_alone(files: Path) -> None:
    done = _run(files, "test_broken.py")
    assert (done.returncode, "= 1 error in" in _summary(done)) == (1, True), done.stdout


def test_files_without_tests_are_no_success(files: Path) -> None:
    (files / "test_empty.py").touch()
    done = _run(files, "test_empty.py", "test_skipped.py")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout


def test_a_file_of_which_no_test_is_chosen_may_be_the_last_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    slow = "import pytest\npytestmark = pytest.mark.slow\ndef test_slow(): pass"
    for name, text in (
        ("a/test_one.py", "def test_one(): pass"),
        ("a/test_slow.py", slow),
        ("b/test_two.py", "def test_two(): pass"),
        ("c/test_slower.py", slow),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = _run(tmp_path)
    assert (done.returncode, "= 2 passed in" in _summary(done)) == (0, True), done.stdout


def test_a_run_stops_at_its_first_failure_within_a_file(files: Path) -> None:
    (files / "test_stops.py").write_text("def test_a(): assert not 1\ndef test_b(): pass")
    done = _run(files, "-x", "test_stops.py")
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "= 1 failed in" in _summary(done), done.stdout


def test_a_file_that_crashes_its_worker_is_a_failure_and_is_run_by_another_one(
    files: Path,
) -> None:
    # It is the last one, so nothing follows for the worker that begins after the crash.
    (files / "test_z.py").write_text(CRASHES_ONCE)
    done = _run(files, "test_one.py", "test_z.py")
    assert done.returncode == 1, done.stdout
    assert "= 1 failed, 4 passed in" in _summary(done), done.stdout
    assert "its last report is about the setup of test_z.py::test_crashes" in done.stdout


def _run(folder: Path, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with the plugins of this suite, and with one worker unless told."""
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    # Those that tests start run without hypothesis.
    path = os.pathsep.join(str(ROOT / one) for one in paths if not one.endswith("child_path"))
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-m", "not slow", "-rA", "-n", "1"]
    return subprocess.run(
        [*command, "--dist", "loadfile", "--no-loadscope-reorder", "--rootdir", folder, *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{path}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def _summary(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]
