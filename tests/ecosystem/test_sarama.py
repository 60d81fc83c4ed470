"""sarama produces once, and copies a topic exactly once, while the client and the node are killed."""

from __future__ import annotations

from tests.ecosystem.go_copying import GoCopyContract
from tools import sarama


class TestSarama(GoCopyContract):
    program = sarama.COPY
