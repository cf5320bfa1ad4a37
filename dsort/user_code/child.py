"""The process of user code: loads the code of a step, and runs it on the records that it receives.

It has one thread, and no descriptors but its pipes and the memories that it shares with the worker.
Standard output is redirected to standard error, because user code prints; so no print can get
between the results.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dsort.containers.tar.header import tar_header, tar_padding
from dsort.user_code.frames import (
    ANSWER,
    BEGUN,
    FRAME,
    HANDED_BACK,
    MAY_NAME,
    NAMES,
    NEW,
    PAGE,
    PAGE_BYTES,
    SAME,
    Answer,
    FrameHead,
    Runner,
    Sample,
    answer_pieces,
    read_exactly,
    read_json,
    said_briefly,
    samples_of,
    write_all,
    write_json,
)

ANSWER_BYTES = 1 << 20
"""An answer is sent once it has this many bytes, so that results do not accumulate."""
JOINED_BYTES_MAX = 16 << 10
"""Up to this size, a copy costs less than one more piece to write."""
PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES_MAX = 64 << 20
"""How many bytes of freed memory stay with the process."""


def main() -> None:
    """Serve the worker that started this process: ``argv`` has the descriptors of both pipes and
    of the page (``PAGE``), the id of the worker's process, and the descriptors of the memories for
    payload."""
    source, sink, page, parent, *memories = map(int, sys.argv[1:])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if hasattr(libc, "mallopt"):  # else each frame's payloads would be on newly mapped pages
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES_MAX // 2)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    if os.getppid() != parent:
        sys.exit(0)
    for descriptor in (source, sink, page, *memories):
        os.set_inheritable(descriptor, False)
    try:
        _serve(source, sink, mmap.mmap(page, PAGE_BYTES), [_Memory(each) for each in memories])
    except (EOFError, BrokenPipeError):
        return  # the worker has closed the pipe, or has ended


class _Memory:
    """Memory that the worker fills with payload. Its size may change each time."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._map: mmap.mmap | None = None

    def view(self, size_bytes: int) -> mmap.mmap:
        """A view of the memory, which is ``size_bytes`` long."""
        if self._map is None or len(self._map) != size_bytes:
            self._map = mmap.mmap(self._file, size_bytes, prot=mmap.PROT_READ)
        return self._map


def _serve(source: int, sink: int, page: mmap.mmap, memories: Sequence[_Memory]) -> None:
    program = read_json(source)
    sys.path.extend(place for place in program["path"] if place not in sys.path)
    if program["memory_bytes"] and program["kind"] == "function":  # else the program gets the limit
        resource.setrlimit(resource.RLIMIT_AS, (program["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        runner = _runner_of(program)
        said: dict[str, object] = {}
        if program["describe"]:
            said["description"] = {**runner.description(), "sources": runner.sources()}
        else:
            _refuse_other_code(runner.sources(), program["sources"])
    except BaseException as error:  # noqa: BLE001 - loading the user's code may raise anything
        said = {"error": said_briefly(f"{type(error).__name__}: {error}")}
        write_all(sink, [ANSWER.pack(BEGUN, 0, 0, 0)])
        write_json(sink, said)
        return
    write_all(sink, [ANSWER.pack(BEGUN, 0, 0, 0)])
    write_json(sink, said)
    try:
        while True:
            head = FrameHead(*FRAME.unpack(read_exactly(source, FRAME.size)))
            payload = memories[head.memory].view(head.memory_bytes)
            given = samples_of(head, read_exactly(source, head.rest_bytes), payload)
            _do_frame(runner, program, head.number, given, sink, page)
    finally:
        runner.close()


def _refuse_other_code(found: Mapping[str, str], known: Mapping[str, str]) -> None:
    """``ValueError`` for code that differs from the code with which the job was begun. Code that
    was not loaded when the job began is not compared, because it may depend on the machine."""
    changed = sorted(name for name in found if known.get(name, found[name]) != found[name])
    if changed:
        raise ValueError(
            f"{', '.join(changed[:3])}: not the code that the job began with: it was changed, or "
            "differs between machines"
        )


def _runner_of(program: Mapping[str, Any]) -> Runner:
    match program["kind"]:  # each case loads only what it needs
        case "files" | "tar":
            from dsort.user_code.programs import FilesRunner, TarRunner

            return (FilesRunner if program["kind"] == "files" else TarRunner)(program)
        case "push":
            from dsort.user_code.requests import PushRunner

            return PushRunner(program)
        case _:
            from dsort.user_code.functions import FunctionRunner

            return FunctionRunner(program)


def _do_frame(
    runner: Runner,
    program: Mapping[str, Any],
    number: int,
    given: tuple[bytes, Sequence[Sample], Sequence[int]],
    sink: int,
    page: mmap.mmap,
) -> None:
    answer, keeps, size = Answer(), bool(program["keeps"]), runner.batch_size
    flags, samples, members = given
    if size == 1:
        _do_each(runner, program, number, given, sink, page)
        return
    for first in range(0, len(samples), size):
        batch = samples[first : first + size]
        if flags[first] & HANDED_BACK:  # such a record comes alone
            _put(answer, batch[0], [batch[0]], members[first] if flags[first] & MAY_NAME else None)
            continue
        PAGE.pack_into(page, 0, number, first, time.monotonic())
        outcomes = runner.run(batch)
        for row, (sample, outcome) in enumerate(zip(batch, outcomes, strict=True), first):
            if isinstance(outcome, str):
                answer.errors.append((len(answer.counts), outcome))
                outcome = [sample] if keeps else []
            _put(answer, sample, outcome, members[row] if flags[row] & MAY_NAME else None)
        if answer.tar_bytes >= ANSWER_BYTES:
            PAGE.pack_into(page, 0, number, first, 0.0)  # it is not running user code
            write_all(sink, answer_pieces(answer))
            answer = Answer()
    PAGE.pack_into(page, 0, number, len(samples), 0.0)
    if answer.counts:
        write_all(sink, answer_pieces(answer))


def _do_each(
    runner: Runner,
    program: Mapping[str, Any],
    number: int,
    given: tuple[bytes, Sequence[Sample], Sequence[int]],
    sink: int,
    page: mmap.mmap,
) -> None:
    """``_do_frame`` for runners that take single records, which saves a µs a record."""
    answer, keeps, one = Answer(), bool(program["keeps"]), runner.one
    now, say = time.monotonic, PAGE.pack_into
    for row, (flag, sample, member) in enumerate(zip(*given, strict=False)):
        results = [sample]
        if not flag & HANDED_BACK:
            say(page, 0, number, row, now())
            outcome = one(sample)
            if isinstance(outcome, str):
                answer.errors.append((len(answer.counts), outcome))
                outcome = [sample] if keeps else []
            results = outcome
        if flag & MAY_NAME and len(results) == 1 and results[0] is sample:
            answer.counts.append(SAME)
            continue
        _put(answer, sample, results, member if flag & MAY_NAME else None)
        if answer.tar_bytes >= ANSWER_BYTES:
            say(page, 0, number, row, 0.0)  # it is not running user code
            write_all(sink, answer_pieces(answer))
            answer = Answer()
    say(page, 0, number, len(given[1]), 0.0)
    if answer.counts:
        write_all(sink, answer_pieces(answer))


def _put(answer: Answer, given: Sample, results: Sequence[Sample], member: int | None) -> None:
    """Add the results of one record. ``member``: the number of the first member of ``given``, if
    unchanged members may be named instead of sent."""
    if member is not None and len(results) == 1 and _is_same(results[0], given):
        answer.counts.append(SAME)
        return
    answer.counts.append(len(results))
    places: dict[str, int] = {}
    if member is not None and results:
        places = {extension: member + at for at, extension in enumerate(given.members)}
    for sample in results:
        key = sample.key.encode(*NAMES)
        answer.members.append(len(sample.members))
        answer.key_bytes.append(len(key))
        may_name = bool(places) and sample.key == given.key
        for extension, data in sample.members.items():
            if may_name and given.members.get(extension) == data:
                place = places.pop(extension, NEW)  # named once: another would need its own header
                answer.named.append(place)
                if place != NEW:
                    continue
            else:
                answer.named.append(NEW)
            _put_member(answer, key, extension, data)


def _is_same(result: Sample, given: Sample) -> bool:
    """Whether a record is unchanged, including the names and order of its members."""
    if result is given:
        return True
    return (
        result.key == given.key
        and result.members == given.members
        and list(result.members) == list(given.members)
    )


def _put_member(answer: Answer, key: bytes, extension: str, data: bytes) -> None:
    size, tar = len(data), answer.tar
    name = b"%b.%b" % (key, extension.encode(*NAMES)) if extension else key
    header, padding = tar_header(name, size), tar_padding(size)
    if size <= JOINED_BYTES_MAX:
        piece = b"%b%b%b" % (header, data, padding)
        tar.append(piece)
        answer.tar_bytes += len(piece)
    else:
        tar += (header, data, padding)
        answer.tar_bytes += len(header) + size + len(padding)


if __name__ == "__main__":
    main()
