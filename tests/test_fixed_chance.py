"""What tests draw by chance is the same in each run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

DRAWN_HERE = (UUID("f2f8a3b9-b5f0-44ad-a884-b1fc8710d9f0"), 0.6529690591318505)


def test_ids_and_numbers_follow_from_the_name_of_the_test() -> None:
    assert (uuid4(), random.random()) == DRAWN_HERE
    assert uuid4() != DRAWN_HERE[0]


@pytest.mark.parametrize("name", ["a", "b"])
def test_each_case_has_ids_of_its_own(name: str) -> None:
    assert name
    assert uuid4() != DRAWN_HERE[0]


def test_a_fork_draws_ids_of_its_own() -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, uuid4().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    assert UUID(bytes=os.read(read, 16)) != uuid4()
    os.close(read)
    os.close(write)


def test_a_process_has_the_same_order_of_sets_and_ids_of_its_own() -> None:
    program = "import uuid; print(hash('a'), uuid.uuid4())"
    first, second = (
        subprocess.check_output([sys.executable, "-c", program], cwd=Path("/"), text=True).split()
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_property_has_the_same_examples_in_each_run() -> None:
    if not settings().derandomize:
        pytest.skip("this run looks for other examples")
    assert examples() == examples()
    assert len(examples()) > 1


def examples() -> list[int]:
    asked = []

    @given(st.integers())
    def ask(number: int) -> None:
        asked.append(number)

    ask()
    return asked
