"""franz-go, in a program behind the line protocol of the logins' tests."""

from __future__ import annotations

from tools.go_program import GoProgram
from tools.places import ROOT

LIBRARY = "github.com/twmb/franz-go"
_PROGRAM = GoProgram("franz-go", ROOT / "tests" / "support" / "drivers" / "franz_go", LIBRARY)

install = _PROGRAM.install
command = _PROGRAM.command
