"""A bucket that is a directory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from dsort.errors import (
    NamesTakenError,
    ObjectNotFoundError,
    StorageAccessError,
)
from dsort.storage.bucket import (
    COPY,
    INTERNAL_PREFIX,
    ObjectInfo,
    check_token_prefixes,
    encoded_name,
    encoded_prefix,
    encoded_token,
)
from dsort.storage.directory.files import (
    LocalReadObject,
    LocalStagedObject,
    info_of,
    link_or_move,
    list_all,
    list_files,
    rename,
    reserve_room,
    sync_directories,
)
from dsort.storage.directory.os_errors import StorageErrors, storage_error_of
from dsort.storage.network_policy import FetchPolicy

RESERVED_BYTES_MIN = 1 << 20
"""Room for smaller files is not reserved, because that takes longer than writing them."""
_OPEN_TRIES_MAX = 10  # another process may remove the directory while it is still empty


class LocalBucket:
    """The files under one directory (see :class:`~dsort.storage.bucket.Bucket`).

    Names are paths relative to it. Links are followed when files are read and listed, never when
    they are removed. Instances may be pickled and used in several processes at once. But an
    object's name can be made durable only by the instance that published it.
    """

    seals_on_finish = False

    def __init__(self, directory: Path, *, policy: FetchPolicy | None = None) -> None:
        """``policy``: the directories in which files may be, once links are resolved. Files
        elsewhere are a ``StorageAccessError``."""
        absolute = directory.absolute()
        self.uri: str = absolute.as_uri()
        self._root = absolute
        self._internal = absolute / INTERNAL_PREFIX
        self._not_durable: set[Path] = set()
        self._policy = policy
        self._real: dict[Path, str] = {}  # directory → its path with links resolved
        self._published_in: set[str] = set()  # directories that are in ``_not_durable``
        self._filled = ""  # the directory that was made, or found, last

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(LocalBucket, policy=self._policy), (self._root,))

    def __repr__(self) -> str:
        return f"LocalBucket({self.uri})"

    def exists(self) -> bool:
        """Whether the directory exists."""
        with self._doing("look for the directory"):
            return self._root.is_dir()

    def create(self) -> None:
        """Make the directory, and the directories above it, if it does not exist."""
        self._check(self._root / "x")
        with self._doing("create the directory"):
            self._root.mkdir(parents=True, exist_ok=True)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The files whose names begin with ``prefix``, in byte order; see ``list_files``."""
        encoded = encoded_prefix(prefix)
        with self._doing(f"list {prefix}*"):
            for info in list_files(os.fsencode(self._root), encoded, self._entered):
                if self._is_ours(self._root / info.name):
                    yield info

    def list_all(self, prefix: str = "") -> Iterator[tuple[bytes, os.stat_result | None]]:
        """(name, status) of the files that ``list`` yields, and (name, None) of entries that are no
        files; see ``files.list_all``."""
        encoded = encoded_prefix(prefix)
        with self._doing(f"list {prefix}*"):
            for name, status in list_all(os.fsencode(self._root), encoded, self._entered):
                if self._policy is None or self._is_ours(self._root / os.fsdecode(name)):
                    yield name, status

    def stat(self, name: str) -> ObjectInfo:
        """Size, time and etag of a file; ``ObjectNotFoundError`` if it does not exist."""
        path = self._path(name)
        with self._doing(f"find {name}"):
            status = self._status(str(path))
        if not stat.S_ISREG(status.st_mode):
            raise ObjectNotFoundError(f"{name} in bucket {self.uri} is not a file")
        return info_of(name, status)

    def stat_many(self, names: Collection[str]) -> dict[str, ObjectInfo]:
        """``stat`` of each name; names without a file are left out."""
        found = {}
        root = f"{self._root}/"
        for name in names:
            if self._policy is None:
                encoded_name(name)
            else:
                self._path(name)  # checks the policy before any fact of the file is returned
            try:
                status = self._status(root + name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise storage_error_of(error, f"find {name}", self.uri) from error
            if stat.S_ISREG(status.st_mode):
                found[name] = info_of(name, status)
        return found

    def open(self, name: str) -> LocalReadObject:
        """Open a file for reading; ``ObjectNotFoundError`` if it does not exist."""
        path = self._path(name)
        with self._doing(f"read {name}"):
            return LocalReadObject(self.open_file(str(path)), name, self.uri)

    def open_file(self, path: str | bytes) -> int:
        """A descriptor of the file at ``path``, a path under the directory. ``OSError`` if it
        cannot be opened; ``StorageAccessError`` if links lead to a place that the policy does not
        allow."""
        # Not blocking: opening a pipe must not wait for its writer.
        return self._allowed(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), path)

    def _status(self, path: str) -> os.stat_result:
        if self._policy is None:
            # Making a Path takes four times as long as the call.
            return os.stat(path)  # noqa: PTH116
        fd = self._allowed(os.open(path, os.O_PATH | os.O_CLOEXEC), path)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def _allowed(self, fd: int, path: str | bytes) -> int:
        """``fd``, if the policy allows the open file. A check of the name before opening is not
        enough: it may have become a link meanwhile."""
        if self._policy is not None:
            real = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - once for each file
            if not self._policy.allows_path(real):
                os.close(fd)
                raise self._refused(Path(os.fsdecode(path)))
        return fd

    @contextlib.contextmanager
    def _held(self, path: Path | str) -> Iterator[str]:
        """``path`` for a call that changes the file of that name. Under a policy, the returned path
        begins at the open directory of the file, which the policy allows: a link that replaces the
        directory meanwhile has no effect. Whether the last part of ``path`` is followed depends on
        the call."""
        if self._policy is None:
            yield str(path)
            return
        directory, _, name = str(path).rpartition("/")
        fd = os.open(directory or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._allowed(fd, directory)
        try:
            yield f"/proc/self/fd/{fd}/{name}"
        finally:
            os.close(fd)

    def pinned(self, info: ObjectInfo) -> None:
        """None: open files have ``random_reads``."""

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        with self.open(name) as opened:
            data = bytearray(opened.info.size_bytes)
            opened.read_into(memoryview(data), 0)
            return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """Store a small file under ``name``: it appears whole or not at all, and survives a power
        cut."""
        self._write(name, data, replace=True)

    def write_new(self, name: str, data: bytes) -> bool:
        """``write``, unless the file ``name`` exists: then return False."""
        return self._write(name, data, replace=False)

    def write_over(self, name: str, data: bytes, etag: str) -> bool:
        """``write`` in place of the file, if its etag is still ``etag``; else False."""
        try:
            info = self.stat(name)
        except ObjectNotFoundError:
            return False
        return info.is_still(info.size_bytes, etag) and self._write(name, data, replace=True)

    def _write(self, name: str, data: bytes, *, replace: bool) -> bool:
        path = self._path(name)
        is_internal = name.startswith(INTERNAL_PREFIX)
        # A temporary file for an internal file is in the job's directory, where `discard` finds it.
        holder = path.parent if is_internal else self._internal
        temporary = holder / f"write-{uuid.uuid4().hex}"
        with self._doing(f"write {name}", needed_bytes=len(data)):
            touched = self._make_directories(path.parent)
            fd = self._open_to_fill(str(temporary), os.O_EXCL)
            try:
                with LocalStagedObject(fd, name, self.uri) as staged:
                    staged.write_at(0, [data])
                    # Before the rename: after a power cut, the name must not lead to an empty file.
                    staged.sync()
                self._rename(str(temporary), str(path), overwrite=replace)
            except FileExistsError:
                if replace:
                    raise
                return False
            finally:
                temporary.unlink(missing_ok=True)
                if not is_internal:
                    remove_if_empty(self._internal)
            sync_directories(touched)
        return True

    def delete(self, name: str) -> None:
        """Remove a file (or a link, but not its target). A missing file is no error."""
        path = self._path(name)
        with (
            self._doing(f"remove {name}"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._held(path) as held,
        ):
            os.unlink(held)  # noqa: PTH108

    def stage(
        self, token: str, *, name: str = "", size_bytes: int | None = None
    ) -> LocalStagedObject:
        """Open the file ``token``, and make it if it does not exist. Reserves room for
        ``size_bytes``."""
        path = self._staged_path(token)
        with self._doing(f"make room for {token}", needed_bytes=size_bytes):
            fd = self._open_to_fill(path, 0)
            try:
                if size_bytes and size_bytes >= RESERVED_BYTES_MIN:
                    reserve_room(fd, size_bytes)
            except OSError:
                os.close(fd)
                raise
        return LocalStagedObject(fd, token, self.uri)

    def publish(self, token: str, name: str, *, overwrite: bool, receipt: str = "") -> None:
        """Rename a staged file to ``name`` in one step, and make the directories that ``name``
        needs.

        Without ``overwrite``, an existing ``name`` is a ``StorageError`` and stays as it is. If a
        killed process had begun to publish the file, a second call completes this.
        """
        source, target = self._places(token, name)
        directory = target.rpartition("/")[0]
        with self._doing(f"publish {name}"):
            try:
                if directory not in self._published_in:
                    self._not_durable |= self._make_directories(Path(directory))
                    self._published_in.add(directory)
                self._rename(source, target, overwrite=overwrite)
            except (FileExistsError, IsADirectoryError) as error:
                raise NamesTakenError(
                    f"{name} in bucket {self.uri} exists already", hint="remove it or rename it"
                ) from error
            except FileNotFoundError:
                if directory in self._published_in and not Path(directory).is_dir():
                    self._published_in.clear()  # the directory was removed since
                    self.publish(token, name, overwrite=overwrite, receipt=receipt)
                # An earlier call may have renamed the file and not returned.
                elif not receipt or not self._is_of(name, receipt):
                    raise

    def _rename(self, source: str, target: str, *, overwrite: bool) -> None:
        if self._policy is not None:
            with self._held(source) as held, self._held(target) as free:
                rename(held, free, overwrite=overwrite)
            return
        rename(source, target, overwrite=overwrite)

    def still_staged(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of files that, under either name, are unchanged since they were finished."""
        return {
            token
            for token, (name, receipt) in tokens.items()
            if self._is_of(token, receipt) or self._is_of(name, receipt)
        }

    def published(self, tokens: Mapping[str, tuple[str, str]]) -> set[str]:
        """The tokens of files that have their names and are unchanged since they were finished."""
        return {token for token, (name, receipt) in tokens.items() if self._is_of(name, receipt)}

    def keep_aside(self, name: str, token: str) -> str:
        """Keep the file (or the link) ``name`` as ``token``, too; "" if it does not exist.

        Without hard links, the file is moved: then ``name`` is free until something is published
        there.
        """
        encoded_token(token)
        source, kept = self._path(name), self._path(token)
        with self._doing(f"keep {name} while it is replaced"):
            try:
                status = source.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return ""
            if stat.S_ISDIR(status.st_mode):
                return ""  # publishing there fails later, and reports the error
            # Without hard links the file leaves its directory, which then needs a sync, too.
            self._not_durable |= self._make_directories(kept.parent) | {source.parent}
            with self._held(source) as old, self._held(kept) as new:
                link_or_move(Path(old), Path(new))
        return COPY

    def put_back(self, token: str, name: str, *, receipt: str) -> None:
        """Rename ``token`` to ``name`` in one step, in place of the file that has that name."""
        encoded_token(token)
        target = self._path(name)
        *parts, last = token.split("/")
        with self._doing(f"put back {name}"):
            touched = self._make_directories(target.parent)
            try:
                with self._held(f"{self._root}/.") as root, self._held(target) as free:
                    move_out(root, parts, last, free)
            except IsADirectoryError as error:
                raise NamesTakenError(
                    f"{name} in bucket {self.uri} is a directory by now", hint="remove or rename it"
                ) from error
            self._not_durable |= touched

    def _is_of(self, place: str, receipt: str) -> bool:
        """Whether the file ``place`` is the staged file of ``receipt``."""
        try:
            info = self.stat(place)
        except ObjectNotFoundError:
            return False
        return info.is_still(info.size_bytes, receipt)

    def make_durable(self) -> None:
        """Return once all names that this instance published survive a power cut."""
        with self._doing("write published names to disk"):
            sync_directories(self._not_durable)
        self._not_durable.clear()
        self._published_in.clear()

    def discard(self, *token_prefixes: str, names: Collection[str] = ()) -> None:
        """Remove dsort's own files whose names begin with one of ``token_prefixes``. Directories
        that become empty, including ``.dsort/``, are removed, too. Links are removed, not
        followed."""
        check_token_prefixes(token_prefixes)
        for prefix in token_prefixes:
            self._remove(prefix)

    def _remove(self, prefix: str) -> None:
        *parts, last = prefix.split("/")
        with (
            self._doing(f"remove {prefix}*"),
            contextlib.suppress(FileNotFoundError),
            self._held(f"{self._root}/.") as root,
        ):
            remove_below(root, parts, last)

    def free_bytes(self) -> int:
        """The bytes that this user may still write to the file system on which the directory is, or
        will be."""
        path = self._root
        with self._doing("find the room left"):
            while not path.is_dir():
                path = path.parent
            status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def local_path(self, name: str) -> Path:
        """The path that ``name`` has or would have."""
        return self._path(name)

    def _path(self, name: str) -> Path:
        encoded_name(name)  # refuses names that lead out of the directory
        self._check(self._root / name)
        return self._root / name

    def _staged_path(self, token: str) -> str:
        """The path of ``token`` as a string; ``_held`` checks the policy. For a small file, making
        a ``Path`` would take as long as opening it."""
        encoded_token(token)
        return f"{self._root}/{token}"

    def _places(self, token: str, name: str) -> tuple[str, str]:
        """The paths of ``token`` and ``name`` as strings, for ``_held``. Making two ``Path``
        objects would take longer than the rename."""
        encoded_name(name)
        return self._staged_path(token), f"{self._root}/{name}"

    def _check(self, path: Path) -> None:
        """``StorageAccessError`` if links lead to a place that the policy does not allow."""
        if self._policy is not None and not self._policy.allows_path(self._real_path(path)):
            raise self._refused(path)

    @staticmethod
    def _refused(path: Path) -> StorageAccessError:
        return StorageAccessError(
            f"{path} leads out of the directories that this job may touch",
            hint="there is a symbolic link on the way: name the bucket that it leads to",
        )

    def _entered(self, name: bytes) -> None:
        """Refuse a link to a directory that the policy does not allow, before the content is
        listed."""
        if self._policy is None:
            return
        path = self._root / os.fsdecode(name)
        real = os.path.realpath(path)
        if not (self._policy.allows_path(real) or self._policy.denies_path(real)):
            raise self._refused(path)

    def _is_ours(self, path: Path) -> bool:
        """Whether a listed file belongs to the bucket, which is false for files that the policy
        denies. A file that is elsewhere raises an error, because a file that is left out might not
        be missed."""
        if self._policy is not None and self._policy.denies_path(self._real_path(path)):
            return False
        self._check(path)
        return True

    def _real_path(self, path: Path) -> str:
        parent = self._real.get(path.parent)
        if parent is None:
            parent = self._real[path.parent] = os.path.realpath(path.parent)
        return os.path.realpath(path) if path.is_symlink() else f"{parent}/{path.name}"

    def _doing(self, action: str, *, needed_bytes: int | None = None) -> StorageErrors:
        return StorageErrors(action, self.uri, needed_bytes=needed_bytes)

    def _open_to_fill(self, path: str, more_flags: int) -> int:
        """Open ``path`` for reading and writing, and make it and its directories if they do not
        exist. Links are refused, because dsort writes only to files of its own."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | more_flags
        directory = path.rpartition("/")[0]
        for _ in range(_OPEN_TRIES_MAX - 1):
            with contextlib.suppress(FileNotFoundError):
                if directory != self._filled:
                    self._make_directories(Path(directory))
                    self._filled = directory
                return self._opened_to_fill(path, flags)
            self._filled = ""
        return self._opened_to_fill(path, flags)

    def _opened_to_fill(self, path: str, flags: int) -> int:
        if self._policy is None:
            return os.open(path, flags, 0o666)
        with self._held(path) as held:
            return os.open(held, flags, 0o666)

    def _make_directories(self, directory: Path) -> set[Path]:
        """Make ``directory`` and the missing directories above it, up to the directory of the
        bucket. Returns the directories that get a new entry: a new directory, or the file that the
        caller makes in ``directory``.
        """
        if not self._root.is_dir():
            raise ObjectNotFoundError(f"there is no bucket {self.uri}", hint="make the directory")
        if self._internal.is_symlink():
            raise StorageAccessError(
                f"{self._internal} is a symbolic link",
                hint="dsort removes nothing behind links, so it has to be a real directory",
            )
        touched = {directory}
        missing = []
        while not directory.is_dir():
            taken = directory.exists() or directory.is_symlink()
            if taken and not directory.is_dir():  # checked again: another process may just make it
                raise NamesTakenError(
                    f"{directory} is in the way: a directory is needed there",
                    hint="remove or rename it",
                )
            missing.append(directory)
            directory = directory.parent
            touched.add(directory)
        for directory in reversed(missing):
            # Another process may have made the directory, and may have removed it since: then
            # ``_open_to_fill`` tries again. ``exist_ok`` would check whether the directory still
            # exists.
            with contextlib.suppress(FileExistsError), self._held(directory) as held:
                os.mkdir(held)  # noqa: PTH102
        return touched


_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY})


def remove_below(root: Path | str, parts: Sequence[str], name_prefix: str) -> None:
    """Remove the entries that begin with ``name_prefix`` in the directory ``parts`` under ``root``.

    Then remove each directory of ``parts`` that is empty, from the last to the first. ``root``
    stays. ``FileNotFoundError`` if ``root`` does not exist; other ``OSError`` are passed on.
    """
    fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        with contextlib.suppress(FileNotFoundError):
            for part in parts:
                fds.append(_open_directory(part, fds[-1]))
            remove_entries(fds[-1], name_prefix)
        while len(fds) > 1:
            os.close(fds.pop())
            remove_if_empty(parts[len(fds) - 1], fds[-1])
    finally:
        for fd in fds:
            os.close(fd)


def move_out(root: str, parts: Sequence[str], name: str, target: str) -> None:
    """Rename ``name`` in the directory ``parts`` under ``root`` to ``target``, in place of any file
    of that name. ``OSError`` are passed on."""
    fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        for part in parts:
            fds.append(_open_directory(part, fds[-1]))
        os.replace(name, target, src_dir_fd=fds[-1])
    finally:
        for fd in fds:
            os.close(fd)


def remove_if_empty(directory: Path | str, parent_fd: int | None = None) -> None:
    """Remove a directory if it is empty."""
    try:
        os.rmdir(directory, dir_fd=parent_fd)
    except OSError as error:
        if error.errno not in _NOT_EMPTY:
            raise


def _open_directory(name: str, parent_fd: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise StorageAccessError(
            f"{name} is a link or a file where dsort keeps a directory of its own",
            hint="dsort removes nothing behind links: check it and remove it by hand",
        ) from error


def remove_entries(directory_fd: int, name_prefix: str) -> None:
    """Remove the entries that begin with ``name_prefix`` in an open directory, directories with all
    of their content. ``OSError`` are passed on."""
    with os.scandir(directory_fd) as entries:
        found = [entry for entry in entries if entry.name.startswith(name_prefix)]
    for entry in found:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=directory_fd)
                continue
            fd = _open_directory(entry.name, directory_fd)
            try:
                remove_entries(fd, "")
            finally:
                os.close(fd)
            remove_if_empty(entry.name, directory_fd)
