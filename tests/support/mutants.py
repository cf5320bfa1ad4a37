"""Damaged shards ("mutants"), and a judge of a whole job over one: the job either refuses the shard
with a clear error, or writes all records that another program reads in it.

``python -m tests.support.mutants --kind .zip --rounds 1000`` tries many mutants, and stores those
with a wrong outcome in the directory ``--keep``.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsort.errors import DsortError, InvariantError, WorkerLostError
from tests.support.container_kinds import (
    KINDS,
    Kind,
    Reading,
    decoders,
    kind_named,
    some_records,
)
from tests.support.encoded_files import made_elsewhere
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline

PROCESSOR_S_MAX = 20
WAIT_S_MAX = 300
"""A job takes 0.1 s of a processor. On a machine with other work, it may wait for much longer."""
WORDS = [
    value.to_bytes(width, order, signed=False)
    for width in (2, 4, 8)
    for value in (
        0,
        1,
        0x7F,
        (1 << (8 * width - 1)) - 1,
        1 << (8 * width - 1),
        (1 << 8 * width) - 1,
    )
    for order in ("little", "big")
]
TARGETS = ("same", ".tar")
"""The containers that a job writes: the same as its input's, or tars."""


@dataclass(frozen=True)
class Verdict:
    """``how``: "refused", "right", or the kind of fault. ``text``: the error, or the difference."""

    how: str
    text: str = ""

    @property
    def is_fine(self) -> bool:
        return self.how in ("refused", "right")


# -- damage ----------------------------------------------------------------------------------------


def _flip(data: bytearray, at: int, rng: random.Random) -> str:
    data[at] ^= 1 << rng.randrange(8)
    return f"bit flipped at {at}"


def _place(data: bytearray, rng: random.Random) -> int:
    """A byte to damage, mostly in the head or the end of a shard, which hold most fields."""
    end = len(data)
    near = rng.choice([end, end, 64, -64, 600])
    if near < 0:
        return rng.randrange(max(end + near, 0), end)
    return rng.randrange(min(near, end))


def _damage(data: bytearray, rng: random.Random) -> str:
    at = _place(data, rng)
    length = rng.choice([1, 2, 4, 8, 64, 512, rng.randrange(1, len(data) + 1)])
    match rng.randrange(11):
        case 0 | 1 | 2:
            return _flip(data, at, rng)
        case 3 | 4:
            word = rng.choice(WORDS)
            data[at : at + len(word)] = word[: len(data) - at]
            return f"{word.hex()} at {at}"
        case 5:
            data[at] = rng.randrange(256)
            return f"byte {data[at]} at {at}"
        case 6:
            del data[at:]
            return f"cut at {at}"
        case 7:
            del data[at : at + length]
            return f"{length} bytes taken out at {at}"
        case 8:
            data[at:at] = data[at : at + length]
            return f"{length} bytes doubled at {at}"
        case 9:
            data[at : at + length] = bytes(len(data[at : at + length]))
            return f"{length} bytes of zeros at {at}"
        case _:
            behind = rng.choice([bytes(length), rng.randbytes(length), bytes(data)])
            data += behind
            return f"{len(behind)} bytes behind"


def mutant(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """(description of the damage, damaged shard)."""
    changed, done = bytearray(data), []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if changed:
            done.append(_damage(changed, rng))
    return ", ".join(done), bytes(changed)


def mutant_of(kind: Kind, whole: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A mutant of a shard of ``kind``. If a codec is around the shard, every second mutant is
    damaged inside of the codec: checksums find nearly all damage outside."""
    if not kind.codec or rng.random() < 0.5:
        return mutant(whole, rng)
    done, data = mutant(decoders()[kind.codec](whole), rng)
    return f"within {kind.codec}: {done}", made_elsewhere(kind.codec, data)


# -- judgement -------------------------------------------------------------------------------------


class _TimeIsUpError(Exception):
    """The job hangs."""


class _Caught:
    """Catches all exceptions of the body: other programs raise errors of all kinds, and a bug of
    dsort is to be reported, too."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        """Begin without an error."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return isinstance(error, Exception)


def _read(reading: Callable[[], Reading]) -> Reading | str:
    """The records that ``reading`` returns, or the error with which it refuses."""
    caught = _Caught()
    found: Reading = []
    with caught:
        found = reading()
    error = caught.error
    return found if error is None else f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def ring(*args: object) -> None:
        raise _TimeIsUpError

    before = {each: signal.signal(each, ring) for each in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S_MAX)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def judge(kind: Kind, data: bytes, target: str, moved: Moved, **fields: Any) -> Verdict:
    """Run a job over the shard ``data``, and compare its records with those of another reader."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        root = Path(directory)
        (root / "in").mkdir()
        (root / "in" / f"s-0{kind.suffix}").write_bytes(data)
        if kind.beside:
            (root / "in" / kind.beside[0]).write_bytes(kind.beside[1])
        output = kind.output_suffix if target == "same" else target
        spec = spec_of(
            **{
                "input_format": {"objnames": [f"s-0{kind.suffix}"]},
                "output_extension": output,
                "output_shard_records": 6,
                **fields,
            }
        )
        caught = _Caught()
        with caught, _in_time():
            run_inline(spec, root, moved)
        match caught.error:
            case None:
                pass
            case InvariantError() | WorkerLostError() as error:
                return Verdict("a bug", f"{type(error).__name__}: {error}")
            case DsortError() as error:
                return _judged_refusal(error, root)
            case _TimeIsUpError():
                return Verdict("hangs")
            case error:
                return Verdict("a traceback", "".join(traceback.format_exception(error)))
        paths = sorted(
            (root / "out").glob("out-*"), key=lambda path: int(path.name[4:].split(".")[0])
        )
        written = [path.read_bytes() for path in paths]
    return _judged_result(kind, data, output, written)


def _judged_refusal(error: DsortError, root: Path) -> Verdict:
    said = f"{type(error).__name__}: {error.message} ({error.hint})"
    if "s-0" not in said and "record" not in said and "index.json" not in said:
        return Verdict("names no shard", said)
    if "Traceback" in said or "Error(" in said or len(said) > 1500:
        return Verdict("an unclear error", said)
    if [
        path for path in (root / "out").rglob("*") if path.is_file() and path.name != "report.json"
    ]:
        return Verdict("leaves files", said)
    return Verdict("refused", said)


def _judged_result(kind: Kind, data: bytes, output: str, written: list[bytes]) -> Verdict:
    reader = kind if output == kind.output_suffix == kind.suffix else kind_named(output)
    wanted = _read(lambda: kind.read(data))
    found = _read(lambda: [record for shard in written for record in reader.read(shard)])
    if isinstance(wanted, str):
        if isinstance(found, str):
            return Verdict("right", f"as unreadable as it was ({wanted})")
        return Verdict("reads what others refuse", f"{wanted}; {len(found)} records")
    if isinstance(found, str):
        return Verdict("writes what others refuse", found)
    if output != kind.output_suffix:
        if len(found) != len(wanted):
            return Verdict("another count", f"{len(found)} in place of {len(wanted)}")
        return Verdict("right")
    if found != wanted:
        lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
        return Verdict("loses or adds", f"lost {[*lost][:2]}, more {[*more][:2]}"[:1000])
    return Verdict("right")


# -- many of them ----------------------------------------------------------------------------------


def main() -> None:
    """Try many mutants, and print the verdicts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--keep", type=Path, default=Path("mutants"))
    parser.add_argument("--target", action="append", default=[])
    given = parser.parse_args()
    faulthandler.enable()
    given.keep.mkdir(exist_ok=True)
    for kind in [kind_named(each) for each in given.kind] or KINDS:
        _try(kind, given)


def _try(kind: Kind, given: argparse.Namespace) -> None:
    rng = random.Random(f"{given.seed} {kind.suffix}")
    whole = kind.write(some_records("fuzz", 13))
    verdicts: Counter[tuple[str, str]] = Counter()
    shown: set[tuple[str, str]] = set()
    for number in range(given.rounds):
        done, data = mutant_of(kind, whole, rng)
        last = given.keep / "last"
        last.write_bytes(data)
        for target in given.target or TARGETS:
            if target == ".tar" and kind.raw_suffix in (".tar", ".bin"):
                continue
            moved = rng.choice([Moved("spill"), Moved("spill", partitions=2, buffer_bytes=2048)])
            if not kind.codec and not kind.is_table and rng.random() < 0.4:
                moved = Moved("map")
            verdict = judge(kind, data, target, moved)
            verdicts[target, verdict.how] += 1
            mark = verdict.how, verdict.text.strip().splitlines()[-1][:60] if verdict.text else ""
            if not verdict.is_fine and mark not in shown and len(shown) < 25:
                shown.add(mark)
                name = f"{given.seed}-{number}-{target.strip('.')}{kind.suffix}"
                shutil.copy(last, given.keep / name)
                text = verdict.text[-1500:]
                print(f"{kind.suffix} -> {target} #{number} ({done}): {verdict.how}: {text}")
    print(
        kind.suffix, {" ".join(key): count for key, count in sorted(verdicts.items())}, flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
