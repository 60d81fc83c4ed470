"""A file that never reaches a disk, for libraries that take secrets from files only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_memory_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file with these bytes that only this user can read.

    It is removed at the end. On systems without ``memfd_create`` it is a temporary file.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tidelog-secret")
        with os.fdopen(descriptor, "wb") as memory:
            memory.write(data)
            memory.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.name
