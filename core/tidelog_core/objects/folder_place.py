"""Notices that another folder is at a store's path than before.

A file system that is mounted or unmounted while a process runs puts another folder there. What is
written to that one is hidden once the first one is back, and what is missing there is not deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tidelog_core.errors import StoreUnavailable, WrongObjectStore


class FoundFolder(NamedTuple):
    """The identity of a folder, as long as it is not removed."""

    device: int
    inode: int


class FolderPlace:
    """The folder in which a store's first object was read or written. For any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: FoundFolder | None = None  # None: nothing was read or written yet

    @property
    def is_known(self) -> bool:
        """Whether the folder must stay the same one."""
        return self._known is not None

    def find(self) -> FoundFolder | None:
        """Return the folder that is at the path now, ``None`` if there is none.

        Raises ``StoreUnavailable`` if that cannot be known.
        """
        try:
            status = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreUnavailable(f"the store's folder cannot be seen: {error}") from error
        return FoundFolder(status.st_dev, status.st_ino)

    def settle(self, found: FoundFolder | None) -> None:
        """Take a folder that was found before an object was read or written in it."""
        if self._known is None:
            self._known = found

    def require(self) -> None:
        """Raise ``WrongObjectStore`` if another folder is at the path now, or none."""
        if self._known is not None and self.find() != self._known:
            raise WrongObjectStore(f"another folder than before is at {self._path}, or none")
