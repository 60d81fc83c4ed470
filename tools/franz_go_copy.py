"""franz-go, in a program behind the commands of tests/ecosystem/copying.py."""

from __future__ import annotations

from tools.franz_go import LIBRARY
from tools.go_program import GoProgram
from tools.places import ROOT

COPY = GoProgram("franz-go-copy", ROOT / "tests" / "ecosystem" / "franz_go", LIBRARY)

install = COPY.install
