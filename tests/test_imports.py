"""What tests may import of each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SHARED = {"support", "contracts", "faults"}
FOLDERS = ("tests", "bench")
# Parsing all files would take seconds.
IMPORTS = re.compile(
    r"^[ ]*(?:import (?P<modules>tests\..*)|from (?P<module>tests[\w.]*) import (?P<names>\([^)]*\)|.*))",
    re.MULTILINE,
)
NAMES = re.compile(r"(?<![\w.])(?!as\b)[\w.]+")


def imported(source: str) -> Iterator[str]:
    """Return what a module imports of the tests: modules, and names in them."""
    for line in IMPORTS.finditer(source):
        if line["module"] is None:
            yield from NAMES.findall(line["modules"])
        else:
            yield from (f"{line['module']}.{name}" for name in NAMES.findall(line["names"]))


def wrong_imports(path: Path, source: str) -> list[str]:
    """Return what a file, named from the repository's root, may not import.

    A folder's test modules are its own. So is all of a package but those that are shared.
    """
    wrong = []
    folder = path.parent.parts
    for name in imported(source):
        parts = name.split(".")
        if parts[0] != "tests" or len(parts) < 3:
            continue
        at = next((n for n, part in enumerate(parts) if part.startswith("test_")), len(parts))
        is_foreign_test = at < len(parts) and tuple(parts[:at]) != folder
        is_foreign = parts[1] not in SHARED and list(folder[:2]) != parts[:2]
        is_inwards = folder[:2] == ("tests", "support") and parts[1] == "contracts"
        if is_foreign_test or is_foreign or is_inwards:
            wrong.append(f"{path}: {name}")
    return wrong


def test_tests_import_test_modules_of_their_own_folder_and_packages_that_are_shared() -> None:
    root = TESTS.parent
    wrong = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            wrong += wrong_imports(path.relative_to(root), path.read_text())
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tests/aws/test_a.py", "from tests.core.tier.test_keys import meta"),
        ("tests/aws/test_a.py", "def f():\n    import tests.core.tier.test_keys"),
        ("tests/core/log/test_a.py", "from tests.core.tier.test_keys import meta"),
        ("tests/core/log/test_a.py", "from tests.core.tier import test_keys"),
        ("tests/support/logs.py", "from tests.core.tier.test_keys import meta"),
        ("tests/support/logs.py", "from tests.node.cluster import Node"),
        ("tests/aws/test_a.py", "from tests.node.coordinator.cluster import Node"),
        ("tests/aws/test_a.py", "from tests.contracts.test_a import a"),
        ("bench/a.py", "from tests.node.cluster import Node"),
    ],
)
def test_an_import_from_elsewhere_is_found(path: str, source: str) -> None:
    assert len(wrong_imports(Path(path), source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from tests.core.log.test_read import a",
        "from tests.core.tier.lifecycle_world import LifecycleWorld",
        "from tests.support.batches import batch",
        "from tests.contracts import metadata_store",
        "from tidelog_core.log import test_names",
    ],
)
def test_what_is_the_folders_own_or_shared_may_be_imported(source: str) -> None:
    assert wrong_imports(Path("tests/core/log/test_a.py"), source) == []
