"""One process of user code, from the side of its worker: frames that are sent, and answers that are
received."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from typing_extensions import Buffer

from dsort.user_code.frames import (
    ANSWER,
    BEGUN,
    PAGE,
    PAGE_BYTES,
    PIECES_MAX,
    Results,
    parse_results,
    said_briefly,
)

# --------------------------------------------------------------------------------------------------
# The environment of code that is not part of dsort: users' functions, programs and commands.
#
# ``DSORT_CODE_ENV`` lists variables that functions and programs of steps receive although they may
# hold secrets. The operator sets it in the environment of dsort; a spec cannot set it.


ALLOWED: Final = "DSORT_CODE_ENV"
_OWN_SECRETS: Final = ("DSORT_DATABASE_URL", "DSORT_TOKEN", "DSORT_TOKEN_FILE")
_SECRET_NAME: Final = re.compile(
    r"^(?:AWS|AZURE|BOTO|CLOUDSDK|GCLOUD|GCS|GOOGLE|MINIO|RCLONE)_"
    r"|(?:^|_)(?:AUTH|CRED|CREDENTIAL|DSN|KEY|PASS|PASSPHRASE|PASSWD|TOKEN)S?(?:_|$)"
    r"|(?:ACCESS|ACCOUNT|API|PRIVATE)KEY|SECRET|PASSWORD|PASSFILE|_PWD$"
    r"|CONNECTION_STRING|DATABASE_UR[IL]|^KUBECONFIG$|^SSH_AUTH_SOCK$"
)
_PASSWORD_IN_URL: Final = re.compile(r"://[^/@\s]*:[^@\s]+@")


def outside_environment() -> dict[str, str]:
    """The environment of this process, without variables that give access to a service or its
    database."""
    return {key: value for key, value in os.environ.items() if key not in _OWN_SECRETS}


def code_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of user code: it has no secrets unless the operator allows them,
    and asks for one thread for algebra, because there is one such process for each core. ``more``:
    further variables."""
    allowed = os.environ.get(ALLOWED, "").replace(",", " ").split()
    found = {
        key: value
        for key, value in outside_environment().items()
        if not _may_be_secret(key, value) or any(fnmatchcase(key, each) for each in allowed)
    }
    return {"OMP_NUM_THREADS": "1", **found, **more}


def _may_be_secret(key: str, value: str) -> bool:
    found = _SECRET_NAME.search(key.upper()) or _PASSWORD_IN_URL.search(value)
    return found is not None


PIPE_BYTES = 1 << 20
READ_BYTES = 1 << 16
SAID_BYTES = 4096
"""How many bytes of standard error are kept: its end."""
F_SETPIPE_SZ = 1031
CLOSING_S = 5.0
MEMORIES = 2
"""The number of frames that a process has at a time: the frame that it runs, and the next one."""
MEMORY_STEP = 1 << 20
KEPT_BYTES = 8 << 20
"""A memory that is larger than this is cut to the needed size once a frame needs no more than
this."""


class Begun(Struct, frozen=True):
    """The process has loaded the user's code, or could not (``error``)."""

    description: Mapping[str, Any]
    error: str = ""


class Place(Struct, frozen=True):
    """The place of a process: the frame, the record in it, and when the work on that record began
    (monotonic; 0: no user code is running)."""

    frame: int
    record: int
    since_s: float


class Memories:
    """Memories that a process shares with its worker, which hold each frame's payload. They are
    used in turn: a frame has one until it is done."""

    def __init__(self) -> None:
        self.files: list[int] = []
        self._maps: list[mmap.mmap | None] = [None] * MEMORIES
        self._turn = 0
        for _ in range(MEMORIES):
            self.files.append(os.memfd_create("dsort-payload"))

    def next(self, size_bytes: int) -> tuple[int, mmap.mmap]:
        """The next memory in turn, with at least ``size_bytes``: (its number, the memory).
        ``OSError`` if there is not enough memory."""
        number, self._turn = self._turn, (self._turn + 1) % MEMORIES
        found = self._maps[number]
        has = 0 if found is None else len(found)
        if found is None or has < size_bytes or (has > KEPT_BYTES >= size_bytes):
            # Unmapped before the file shrinks: a read behind its end would be a SIGBUS.
            if found is not None:
                found.close()
            wanted = -(-max(size_bytes, 1) // MEMORY_STEP) * MEMORY_STEP
            os.ftruncate(self.files[number], wanted)
            found = self._maps[number] = mmap.mmap(self.files[number], wanted)
        return number, found

    def close(self) -> None:
        """Release the memories."""
        for file in self.files:
            os.close(file)
        self.files.clear()
        self._maps.clear()


class CodeProcess:
    """A process, which starts at once. ``program``: its instructions. ``environment``: variables in
    addition to those of this process. ``OSError`` if no more processes can be started. The pipes of
    the process do not block: see ``descriptors``."""

    def __init__(self, program: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        to_read, self._sink = os.pipe()
        self._source, to_write = os.pipe()
        self._page_file = os.memfd_create("dsort-place")
        os.truncate(self._page_file, PAGE_BYTES)
        self._page = mmap.mmap(self._page_file, PAGE_BYTES)
        self.memories = Memories()
        given = (to_read, to_write, self._page_file, *self.memories.files)
        path = os.pathsep.join(place for place in sys.path if place)
        # -P: no modules from this directory.
        own = ["-P", "-m", "dsort.user_code.child"]
        arguments = map(str, (*given[:3], os.getpid(), *given[3:]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, *own, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=given,
                start_new_session=True,
                env={**code_environment(environment), "PYTHONPATH": path},
            )
        except BaseException:
            os.close(self._sink)
            os.close(self._source)
            self.memories.close()
            raise
        finally:
            os.close(to_read)
            os.close(to_write)
        assert self._process.stdout is not None
        self._stderr = self._process.stdout.fileno()
        for descriptor in (self._sink, self._source, self._stderr):
            os.set_blocking(descriptor, False)
            with contextlib.suppress(OSError):  # more than the user's limit for pipes
                fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE_BYTES)
        self.has_begun = False
        self.is_over = False
        self._said = b""
        self._to_send: deque[memoryview] = deque()
        self._directory = tempfile.mkdtemp(prefix="dsort-step-")
        own_values = {"path": [str(Path.cwd())], "directory": self._directory}
        data = json.dumps({**program, **own_values}).encode()
        self.send(len(data).to_bytes(8, "little") + data)
        self._head: list[int] = []
        self._wanted = bytearray(ANSWER.size)
        self._have = 0
        self._part: bytes | None = None
        self._is_json = 0

    # -- sending ---------------------------------------------------------------------------------

    def send(self, data: Buffer) -> None:
        """Queue ``data``, which is sent as the process reads it; it must not change until then."""
        self._to_send.append(memoryview(data).cast("B"))

    @property
    def has_to_send(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._to_send)

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """The descriptors of (its input, its results, its output and errors)."""
        return self._sink, self._source, self._stderr

    def write(self) -> None:
        """Write as much as the pipe accepts now."""
        queue = self._to_send
        try:
            while queue:
                some = [queue[at] for at in range(min(len(queue), PIECES_MAX))]
                written = os.writev(self._sink, some)
                while queue and written >= len(queue[0]):
                    written -= len(queue.popleft())
                if written:
                    queue[0] = queue[0][written:]
        except BlockingIOError:
            return
        except BrokenPipeError:
            queue.clear()  # the process has ended, which is found when its answers are read

    # -- receiving -------------------------------------------------------------------------------

    def read(self) -> list[Begun | Results]:
        """The messages received since the last call. ``is_over`` is set at the end of its answers;
        ``ValueError`` for an invalid answer."""
        found: list[Begun | Results] = []
        while True:
            try:
                got = os.readv(self._source, [memoryview(self._wanted)[self._have :]])
            except BlockingIOError:
                return found
            if not got:
                self.is_over = True
                return found
            self._have += got
            while self._have == len(self._wanted):
                done, self._wanted, self._have = self._wanted, bytearray(), 0
                message = self._next(done)
                if message is not None:
                    found.append(message)

    def _next(self, data: bytearray) -> Begun | Results | None:
        """Parse a part that is complete, and set the length of the next part."""
        if self._is_json == 1:  # the length of the text
            self._is_json, self._wanted = 2, bytearray(int.from_bytes(data, "little"))
            return None
        if self._is_json == 2:
            self._is_json, self._wanted = 0, bytearray(ANSWER.size)
            said = json.loads(bytes(data))
            self.has_begun = True
            return Begun(said.get("description", {}), said.get("error", ""))
        if not self._head:
            kind, *self._head = ANSWER.unpack(data)
            if kind == BEGUN:
                self._head, self._is_json, self._wanted = [], 1, bytearray(8)
                return None
            self._wanted = bytearray(self._head[1])
            return None
        if self._part is None:
            self._part, self._wanted = bytes(data), bytearray(self._head[2])
            return None
        results = parse_results(self._head[0], self._part, data)
        self._head, self._part, self._wanted = [], None, bytearray(ANSWER.size)
        return results

    def listen(self) -> None:
        """Read its standard output and standard error, and keep the end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stderr, READ_BYTES):
                self._said = (self._said + data)[-SAID_BYTES:]
                if len(data) < READ_BYTES:
                    return

    @property
    def place(self) -> Place:
        """The current place of the process, or its last place before it ended."""
        return Place(*PAGE.unpack_from(self._page))

    # -- its end ---------------------------------------------------------------------------------

    def end(self) -> str:
        """Kill the process and its group, if it still runs. Returns how it ended, in words."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        self.listen()
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({_signal_name(-code)})"
        words = said_briefly(self._said.decode("utf-8", "replace").strip().rpartition("\n")[2])
        self._close()
        return f"its process {how}" + (f": {words}" if words else "")

    def close(self) -> None:
        """Give the process a moment to end by itself, and then kill it."""
        # The end of its input lets it end by itself.
        with contextlib.suppress(OSError):
            os.close(self._sink)
        self._sink = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)
        with contextlib.suppress(ProcessLookupError):  # and all processes that it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for descriptor in (self._sink, self._source, self._page_file):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._page.close()
        self.memories.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._to_send.clear()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of the kernel's own"
