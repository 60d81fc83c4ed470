"""sarama, in a program behind the commands of tests/ecosystem/copying.py."""

from __future__ import annotations

from tools.go_program import GoProgram
from tools.places import ROOT

COPY = GoProgram("sarama", ROOT / "tests" / "ecosystem" / "sarama", "github.com/IBM/sarama")

install = COPY.install
