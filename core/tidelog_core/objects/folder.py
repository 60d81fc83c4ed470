"""An object store in a folder, durable on return, shared by any number of processes.

    <folder>/<key>              an object, never changed once linked under its name
    <folder>/.staging/<uuid>    an object being written; its writer holds a lock on it

A write goes to a staging file, is fsynced, and then gets its name with ``link``, which fails if
the name exists. So of several writers one wins, and a reader that sees the name sees all the
bytes. Last the folder is fsynced, and every folder above it that may be new, so the name survives
a power failure. A staging file without a lock was left by a crash; opening the store removes it, if
it may.

A missing folder is an empty store, and the first write makes it: ``open_object_store`` refuses it
to those that only read. Once an object has been read or written, the folder must stay the same one.
If it is gone later, or another one is at its path, a file system was mounted or is not mounted any
more. Then the folder is not made again, nothing counts as written, and no object counts as missing.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import itertools
import os
import stat
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from tidelog_core.errors import (
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreNotFound,
    StoreUnavailable,
)
from tidelog_core.objects.filled_store import Fill
from tidelog_core.objects.folder_place import FolderPlace
from tidelog_core.objects.key_rules import STAGING, check_key, check_range, may_start_a_key
from tidelog_core.objects.kms_keys import refuse_kms_key
from tidelog_core.objects.store import ObjectMeta

T = TypeVar("T")

THREAD_COUNT = 8
LIST_PAGE_SIZE = 1000
COPY_SIZE_BYTES = 64 << 20  # of one call of the kernel
COPY_BUFFER_SIZE_BYTES = 1 << 20  # where the kernel does not copy
# What a kernel or a pair of file systems says that has no copy_file_range. Source: its man page.
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
KNOWN_FOLDERS_MAX = 16_384
STAGING_ATTEMPTS_MAX = 100  # each lost attempt means that a cleaner or a delete got in between


class FolderObjectStore:
    """An ``ObjectStore`` on a local file system. Durable on return.

    Raises ``WrongObjectStore`` once its folder is not the one of the first object any more.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder. Nothing is made before the first write."""
        self._folder = folder.absolute()
        self._staging = self._folder / STAGING
        self._executor = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="folder-store")
        # Folders whose names are known to be durable, by inode: a folder that was removed
        # and created again is another one.
        self._durable_folders: dict[str, int] = {}
        self._making = threading.Lock()
        self._place = FolderPlace(self._folder)
        self._remove_abandoned()

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``, durably. Raises ``ObjectExists``, ``StoreUnavailable`` for a KMS key."""
        check_key(key)
        refuse_kms_key(key, kms_key_id)
        await self._run(self._write, key, lambda file: _write_all(file, data), is_new=True)

    async def put_filled(self, key: str, fill: Fill[T], *, timeout_s: float) -> T:
        """Store the bytes that ``fill`` writes, durably; see ``FilledStore``."""
        check_key(key)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._run(self._write, key, fill, is_new=True)
        except TimeoutError:
            raise OutcomeUnknown(f"object {key!r} may not be written: no answer in time") from None

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes as they are at the call, durably. Raises as ``put``."""
        check_key(key)
        refuse_kms_key(key, kms_key_id)
        await self._run(self._write, key, lambda file: _copy(path, file), is_new=True)

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists, durably."""
        check_key(key)
        await self._run(self._write, key, lambda file: _write_all(file, data), is_new=False)

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        check_key(key)
        return await self._run(self._read, key, 0, None)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)``, fewer only at the end of the object."""
        check_key(key)
        check_range(start, end)
        return await self._run(self._read, key, start, end)

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        check_key(key)
        return await self._run(self._head, key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order."""
        walk = self._walk(prefix, start_after)
        while True:
            page = await self._run(self._take, walk)
            for meta in page:
                yield meta
            if len(page) < LIST_PAGE_SIZE:
                return

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects that are there, durably, and folders left empty."""
        for key in keys:
            check_key(key)
        if keys:
            await self._run(self._delete, keys)

    async def close(self) -> None:
        """Wait for the calls under way and end the threads."""
        await asyncio.to_thread(self._executor.shutdown)

    async def _run(self, function: Callable[..., T], *args: object, **keywords: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **keywords))

    def _write(self, key: str, fill: Fill[T], *, is_new: bool) -> T:
        target = self._folder / key
        try:
            with self._staged() as (staged, file):
                result = fill(file)
                file.flush()
                os.fsync(file.fileno())
                is_named = self._name(staged, target, is_new=is_new)
        except OSError as error:
            raise StoreUnavailable(f"object {key!r} was not written: {error}") from error
        self._fsync_folder_of(key, target)
        try:
            self._place.require()  # Last: every step was done in the folder that is there now.
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"object {key!r} may be hidden later: {error}") from error
        if not is_named:  # Not earlier: the caller takes the existing name for durable.
            raise ObjectExists(key)
        return result

    @contextmanager
    def _staged(self) -> Iterator[tuple[Path, BinaryIO]]:
        self._make_place()
        for _ in range(STAGING_ATTEMPTS_MAX):
            staged = self._staging / uuid.uuid4().hex
            with self._created(staged) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_nlink == 0:
                    continue  # A cleaner removed the file between its creation and locking.
                try:
                    yield staged, file
                finally:
                    staged.unlink(missing_ok=True)
                return
        raise OSError(errno.EAGAIN, "staging files keep vanishing", str(self._staging))

    def _created(self, staged: Path) -> BinaryIO:
        try:
            return staged.open("xb")
        except FileNotFoundError:  # A copy of the objects need not have the folder for staging.
            self._staging.mkdir(exist_ok=True)
            return staged.open("xb")

    def _make_place(self) -> None:
        """Make the folder before the first object. Later, require that it is the same one."""
        with self._making:
            if not self._place.is_known:
                _make_durable_folder(self._staging)
                self._place.settle(self._place.find())
        self._place.require()

    def _name(self, staged: Path, target: Path, *, is_new: bool) -> bool:
        """Give the staged file its name and return ``True``, or ``False`` if the name exists."""
        for _ in range(STAGING_ATTEMPTS_MAX):
            try:
                self._make_known(target.parent)
            except (FileNotFoundError, FileExistsError):
                self._place.require()
                continue  # It went between one step of making it and the next.
            try:
                if is_new:
                    os.link(staged, target)
                else:
                    staged.replace(target)
            except FileNotFoundError:
                self._place.require()
                continue  # A delete has just removed the folder because it was empty.
            except FileExistsError:
                return False
            return True
        raise OSError(errno.EAGAIN, "the folder keeps vanishing", str(target.parent))

    def _make_known(self, folder: Path) -> None:
        name = str(folder)
        try:
            inode = folder.stat().st_ino
        except FileNotFoundError:
            inode = -1
        if self._durable_folders.get(name) == inode:
            return
        _make_durable_folder(folder, below=self._folder)
        if len(self._durable_folders) >= KNOWN_FOLDERS_MAX:
            self._durable_folders.clear()
        try:
            self._durable_folders[name] = folder.stat().st_ino
        except FileNotFoundError:
            return  # Removed again; the caller's link will notice.

    def _fsync_folder_of(self, key: str, target: Path) -> None:
        try:
            _fsync_folder(target.parent)
        except FileNotFoundError:
            return  # The object was deleted, and its folder with it.
        except OSError as error:
            raise OutcomeUnknown(f"object {key!r} may not survive a crash: {error}") from error

    def _read(self, key: str, start: int, end: int | None) -> bytes:
        found = None if self._place.is_known else self._place.find()
        try:
            data = _read_object(self._folder, key, start, end)
        except ObjectNotFound:
            self._place.require()
            raise
        self._place.settle(found)
        return data

    def _head(self, key: str) -> ObjectMeta:
        path = self._folder / key
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self._place.require()
            raise ObjectNotFound(key) from None
        except OSError as error:
            raise StoreUnavailable(f"object {key!r} cannot be read: {error}") from error
        if path.is_dir():
            raise ObjectNotFound(key)
        return _meta(key, status)

    def _take(self, metas: Iterator[ObjectMeta]) -> Sequence[ObjectMeta]:
        page = list(itertools.islice(metas, LIST_PAGE_SIZE))
        self._place.require()  # Last: what was listed was in the folder that is found now.
        return page

    def _walk(self, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        if not may_start_a_key(prefix):
            return
        top, _, _ = prefix.rpartition("/")
        yield from self._walk_folder(f"{top}/" if top else "", prefix, start_after)

    def _walk_folder(self, key_start: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
        try:
            with os.scandir(self._folder / key_start) as entries:
                # A folder sorts by the keys below it, in which a slash follows its name.
                found = sorted((e.name + "/" if e.is_dir() else e.name, e) for e in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StoreUnavailable(f"{key_start!r} cannot be listed: {error}") from error
        for name, entry in found:
            key = key_start + name
            if key == f"{STAGING}/" or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            is_folder = name.endswith("/")
            if key <= start_after and not (is_folder and start_after.startswith(key)):
                continue  # And so does all that is below it.
            if is_folder:
                yield from self._walk_folder(key, prefix, start_after)
            elif key.startswith(prefix):
                try:
                    yield _meta(key, entry.stat())
                except FileNotFoundError:
                    continue  # Deleted since the folder was read.

    def _delete(self, keys: Sequence[str]) -> None:
        folders: set[Path] = set()
        try:
            for key in keys:
                path = self._folder / key
                try:
                    path.unlink()
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    continue
                folders.add(path.parent)
            for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
                self._remove_empty(folder)
        except OSError as error:
            raise StoreUnavailable(f"objects cannot be deleted: {error}") from error
        self._place.require()  # Last: an object that was not there may be where the folder is.

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._folder:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                break  # Not empty.
            folder = folder.parent
        while True:
            try:
                return _fsync_folder(folder)
            except FileNotFoundError:
                if folder == self._folder:
                    raise
                folder = folder.parent  # Another delete has found it empty just now.

    def _remove_abandoned(self) -> None:
        try:
            left = list(self._staging.iterdir())
        except OSError:
            return  # Nothing has been written yet, or this process may not read it.
        for path in left:
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Unlinked under the lock: a writer that was about to lock sees it.
                    path.unlink(missing_ok=True)
            except OSError:
                # Its writer is still writing it, or has finished; or this process only reads, and
                # a writer will remove it.
                continue


def require_folder(folder: Path) -> None:
    """Raise ``StoreNotFound`` if there is no folder, ``StoreUnavailable`` if that is unknown."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_folder = False
    except OSError as error:
        raise StoreUnavailable(f"the object store's folder cannot be seen: {error}") from error
    if not is_folder:
        raise StoreNotFound("object store", folder)


def read_object_into(folder: Path, key: str, start: int, memory: memoryview) -> int:
    """Read an object from ``start`` on into the memory; return the number of bytes.

    They are fewer than the memory has only at the end of the object. For any thread. Raises
    ``ObjectNotFound``, ``StoreUnavailable``.
    """
    with _opened(folder, key) as file:
        done = 0
        while count := os.preadv(file.fileno(), [memory[done:]], start + done):
            done += count  # One call reads at most about 2 GiB.
        return done


def _read_object(folder: Path, key: str, start: int, end: int | None) -> bytes:
    """Return bytes ``[start, end)`` of an object; ``None``: to its end."""
    with _opened(folder, key) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end is None else min(end, size)
        return _read_exactly(file.fileno(), start, max(0, end - start))


@contextmanager
def _opened(folder: Path, key: str) -> Iterator[io.FileIO]:
    """Open an object. Errors of the block too become ``ObjectNotFound`` or ``StoreUnavailable``."""
    check_key(key)
    try:
        with (folder / key).open("rb", buffering=0) as file:
            yield file
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise ObjectNotFound(key) from None
    except OSError as error:
        raise StoreUnavailable(f"object {key!r} cannot be read: {error}") from error


def _make_durable_folder(folder: Path, below: Path | None = None) -> None:
    """Create the folder and make its name durable, and those of the folders above it.

    With ``below``, that folder is there, and its own name is known to be durable already. It is not
    made again. Raises ``FileNotFoundError`` if it is gone.
    """
    if folder == below:
        return
    if below is None:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        parts = folder.relative_to(below).parts
        for count in range(1, len(parts) + 1):
            below.joinpath(*parts[:count]).mkdir(exist_ok=True)
    for parent in folder.parents:
        try:
            _fsync_folder(parent)
        except PermissionError:
            return  # We cannot have created anything in there.
        if parent == below or parent.is_mount():
            return


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _copy(source: Path, target: BinaryIO) -> None:
    """Write the bytes that the file has now to the target, an empty file.

    The kernel copies. A buffer for each copy would leave holes between the allocations that outlive
    it, and the process would grow for as long as it copies.
    """
    with source.open("rb", buffering=0) as file:
        position, end = 0, os.fstat(file.fileno()).st_size
        while position < end:
            size_bytes = min(end - position, COPY_SIZE_BYTES)
            count = _copy_range(file.fileno(), target.fileno(), position, size_bytes)
            if not count:
                return  # The file has become shorter.
            position += count


def _copy_range(source: int, target: int, position: int, size_bytes: int) -> int:
    """Copy at most so many bytes at the position; return their number, 0 at the source's end."""
    if hasattr(os, "copy_file_range"):  # Linux
        try:
            count = os.copy_file_range(source, target, size_bytes, position, position)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
        else:
            if count:
                return count
            # Some file systems copy nothing and report no error. Source: its man page, "BUGS".
    data = os.pread(source, min(size_bytes, COPY_BUFFER_SIZE_BYTES), position)
    return os.pwrite(target, data, position)


def _read_exactly(descriptor: int, position: int, size_bytes: int) -> bytes:
    data = os.pread(descriptor, size_bytes, position)
    if len(data) == size_bytes or not data:
        return data
    # One call reads at most about 2 GiB.
    parts = [data]
    while (done := sum(map(len, parts))) < size_bytes:
        part = os.pread(descriptor, size_bytes - done, position + done)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    modified_ms = status.st_mtime_ns // 1_000_000
    return ObjectMeta(key=key, size_bytes=status.st_size, modified_ms=modified_ms)
