"""franz-go produces once, and copies a topic exactly once, while the client and the node are killed."""

from __future__ import annotations

from tests.ecosystem.go_copying import GoCopyContract
from tools import franz_go_copy


class TestFranzGo(GoCopyContract):
    program = franz_go_copy.COPY
