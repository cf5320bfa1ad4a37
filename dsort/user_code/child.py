"""The process of user code: loads what a step runs, and does it on the records that it is given.

It has one thread, and no descriptors but its pipes. Standard output goes where standard error goes,
for users print; nothing of it can get between the results.
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

from dsort.user_code.frames import (
    ANSWER,
    BEGUN,
    FRAME,
    PAGE,
    PAGE_BYTES,
    Answer,
    FrameHead,
    Sample,
    answer_pieces,
    read_exactly,
    read_json,
    samples_of,
    write_all,
    write_json,
)
from dsort.user_code.runner import Runner, said_briefly
from dsort.user_code.tar_headers import tar_header, tar_padding

__all__ = ["main"]

ANSWER_BYTES = 1 << 20
"""An answer is sent once it has so many bytes, so that results do not pile up."""
JOINED_BYTES_MAX = 16 << 10
"""Up to this, a copy costs less than a piece more to write."""
PR_SET_PDEATHSIG = 1
NAMES = ("utf-8", "surrogateescape")


def main() -> None:
    """Serve the worker that started this process: ``argv`` has the descriptors of both pipes and
    of the page, and the worker's process."""
    source, sink, page, parent = map(int, sys.argv[1:5])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)
    for descriptor in (source, sink, page):
        os.set_inheritable(descriptor, False)
    try:
        _serve(source, sink, mmap.mmap(page, PAGE_BYTES))
    except (EOFError, BrokenPipeError):
        return  # the worker is done with us, or gone


def _serve(source: int, sink: int, page: mmap.mmap) -> None:
    program = read_json(source)
    sys.path.extend(place for place in program["path"] if place not in sys.path)
    if program["memory_bytes"] and program["kind"] == "function":  # else it is the program's
        resource.setrlimit(resource.RLIMIT_AS, (program["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        runner = _runner_of(program)
        said: dict[str, object] = {
            "description": runner.description() if program["describe"] else {}
        }
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
            flags, samples = samples_of(head, read_exactly(source, head.rest_bytes))
            _do_frame(runner, program, head.number, flags, samples, sink, page)
    finally:
        runner.close()


def _runner_of(program: Mapping[str, Any]) -> Runner:
    match program["kind"]:  # each loads what it needs, and no more
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
    flags: bytes,
    samples: Sequence[Sample],
    sink: int,
    page: mmap.mmap,
) -> None:
    answer, keeps, size = Answer(), bool(program["keeps"]), runner.batch_size
    for first in range(0, len(samples), size):
        batch = samples[first : first + size]
        if flags[first]:  # such a record comes alone
            for sample in batch:
                _put(answer, [sample])
            continue
        PAGE.pack_into(page, 0, number, first, time.monotonic())
        outcomes = runner.run(batch)
        for sample, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, str):
                answer.errors.append((len(answer.counts), outcome))
                outcome = [sample] if keeps else []
            _put(answer, outcome)
        if answer.tar_bytes >= ANSWER_BYTES:
            PAGE.pack_into(page, 0, number, first, 0.0)  # it waits for nobody's code
            write_all(sink, answer_pieces(answer))
            answer = Answer()
    PAGE.pack_into(page, 0, number, len(samples), 0.0)
    if answer.counts:
        write_all(sink, answer_pieces(answer))


def _put(answer: Answer, results: Sequence[Sample]) -> None:
    """Add what one record became."""
    answer.counts.append(len(results))
    tar = answer.tar
    for sample in results:
        key = sample.key.encode(*NAMES)
        answer.members.append(len(sample.members))
        answer.key_bytes.append(len(key))
        for extension, data in sample.members.items():
            size = len(data)
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
