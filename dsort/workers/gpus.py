"""GPUs for user code: finds which steps need GPUs, and which process uses which one."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from msgspec import Struct

from dsort.errors import InvariantError
from dsort.scratch.directory import Scratch
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep

VISIBLE = "CUDA_VISIBLE_DEVICES"
NVIDIA = Path("/proc/driver/nvidia/gpus")
PARTS_MAX = 1000


class GpuNeeds(Struct, frozen=True):
    """The GPUs that the processes of one worker need. ``total``: a part of one GPU, or whole GPUs.
    ``spans``: for each step, the number of its first GPU, and one more than the number of its
    last."""

    total: Fraction
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> GpuNeeds:
        """The needs of one process of each of ``steps``, side by side. A process that needs a part
        of a GPU gets it from a single GPU."""
        at, spans = Fraction(0), []
        for step in steps:
            wanted = step.limits.gpus if isinstance(step, PayloadStep) else 0
            # Exact: ten processes with 0.1 of a GPU fit on one, which a sum of floats can miss.
            part = Fraction(wanted).limit_denominator(PARTS_MAX)
            # A part that would begin on one GPU and end on the next begins on the next.
            if part and at % 1 + part > 1:
                at = Fraction(math.ceil(at))
            spans.append((math.floor(at), math.ceil(at + part)) if part else (0, 0))
            at += part
        return cls(at if at < 1 else Fraction(math.ceil(at)), tuple(spans))

    def workers(self, gpus: int) -> int:
        """The number of workers for which ``gpus`` suffice."""
        return gpus * int(1 / self.total) if self.total < 1 else gpus // int(self.total)

    def dealt(self, gpus: Sequence[str], place: int) -> tuple[str, ...]:
        """The value of ``VISIBLE`` for each step of the worker at ``place``; "" for a step without
        GPUs."""
        first = place // int(1 / self.total) if self.total < 1 else place * int(self.total)
        return tuple(",".join(gpus[first + a : first + b]) for a, b in self.spans)


def cpus_of(steps: Sequence[Step]) -> float:
    """The CPUs that a worker uses, at least one: its processes run one after the other."""
    wanted = [step.limits.cpus for step in steps if isinstance(step, PayloadStep)]
    return max([1.0, *wanted])


def visible_gpus() -> tuple[str, ...] | None:
    """The GPUs that this process may use, by ``VISIBLE``; None: the variable is not set."""
    if VISIBLE not in os.environ:
        return None
    names = [each.strip() for each in os.environ[VISIBLE].split(",")]
    ends = [at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles")]
    return tuple(names[: ends[0]] if ends else names)  # CUDA ignores all names from such a name on


def gpus_here() -> tuple[str, ...]:
    """The GPUs of this machine that a job may use."""
    visible = visible_gpus()
    if visible is not None:
        return visible
    with contextlib.suppress(OSError):
        return tuple(map(str, range(len(list(NVIDIA.iterdir())))))
    return ()


# A worker has one process of each step that needs GPUs. On Ray, a worker is given the GPUs that its
# processes need, and sees no others. On one machine, workers share the GPUs: each worker takes a
# place by locking a file in scratch. The lock ends with the worker, so a replacement finds the
# place free.
class GpuPlace:
    """The GPUs of one worker. ``gpus``: the GPUs of this machine, which workers share; None: the
    worker has all GPUs that this process sees."""

    def __init__(self, needs: GpuNeeds, gpus: Sequence[str] | None, scratch: Scratch) -> None:
        self._file = -1
        place, own = 0, gpus
        if own is None:
            own = visible_gpus() or ()
        else:
            place = self._take(needs.workers(len(own)), scratch)
        self._dealt = needs.dealt(own, place)

    def environment(self, step: int) -> dict[str, str]:
        """The environment variables of the process of ``step``."""
        return {VISIBLE: self._dealt[step]} if self._dealt[step] else {}

    def close(self) -> None:
        """Free the place, once no process uses its GPUs."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _take(self, places: int, scratch: Scratch) -> int:
        for place in range(places):
            file = scratch.open_to_write(f"gpus-{place}", os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                continue
            self._file = file
            return place
        # The coordinator starts no more workers than `GpuNeeds.workers` allows.
        raise InvariantError(f"no GPUs are left for another worker (places for workers: {places})")
