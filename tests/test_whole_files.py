"""Workers that deal with whole files report the tests in them as always."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

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


def test_tests_of_files_that_one_worker_imports_are_run_and_reported_one_by_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(IMPORTED + text)
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    # Those that tests start run without hypothesis.
    path = os.pathsep.join(one for one in paths if not one.endswith("child_path"))
    plugins = [word for name in PLUGINS for word in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-m", "not slow", "-rA"]
    done = subprocess.run(
        [*command, "-n", "2", "--dist", "loadfile", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    summary = done.stdout.splitlines()[-1]
    assert "1 failed, 5 passed, 1 skipped" in summary, done.stdout
    assert "1 error" in summary
    for line in (
        "PASSED .*test_several.py::test_passes.2.",
        "FAILED .*test_several.py::test_fails",
        "ERROR .*test_broken.py",
        "PASSED .*test_other.py::test_other",
    ):
        assert re.search(f"^{line}", done.stdout, re.MULTILINE), done.stdout
    imports = Counter((tmp_path / "imports").read_text().split())
    assert imports == dict.fromkeys(FILES, 1)
