"""The base of steps that read payload.

They do not run in the process of a worker, but in processes of user code (``dsort.user_code``), and
make new records. So a job with such a step always spills.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

from annotated_types import Ge, Le
from msgspec import Struct
from msgspec.structs import replace

from dsort.durations import parse_duration_s
from dsort.errors import InvariantError
from dsort.option_fields import OptionError, OptionGroup, option
from dsort.sizes import parse_size_bytes
from dsort.transforms.base import Needs, Step

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable


class ResourceOptions(OptionGroup, frozen=True):
    """The memory, CPUs and GPUs of each process of a step."""

    memory: str | None = option(
        str,
        "Address space at most: `4GiB`. A process that needs more gets a MemoryError. Default: no "
        "limit.",
        check=lambda text: _memory(text),
    )
    num_cpus: float | None = option(
        Annotated[float, Ge(0), Le(1024)],
        "The CPUs that a process uses. Its libraries for algebra get as many threads "
        "(`OMP_NUM_THREADS`), and fewer processes run at a time. Default: one.",
        check=lambda cpus: cpus or None,
    )
    num_gpus: float | None = option(
        Annotated[float, Ge(0), Le(1024)],
        "The GPUs that a process has for itself, a whole number or a part of one; "
        "`CUDA_VISIBLE_DEVICES` lists them. A worker has one such process. On Ray, workers request "
        "the GPUs. Default: no GPU is assigned, and a process sees the GPUs that its worker sees.",
        check=lambda gpus: _gpus(gpus),
    )


def _memory(text: str) -> str | None:
    try:
        return str(parse_size_bytes(text) or "") or None
    except ValueError as error:
        raise OptionError(f"has a resources.memory that is no size: {error}") from None


def _gpus(gpus: float) -> float | None:
    if gpus > 1 and gpus != int(gpus):
        problem = f"has a resources.num_gpus of {gpus:g}"
        raise OptionError(problem, "write a whole number, or a part of one")
    return gpus or None


def _resources(given: Mapping[str, Any]) -> ResourceOptions | None:
    found = ResourceOptions(**ResourceOptions.checked(given))
    return found if found.written() else None


def _processes(given: int | Sequence[int]) -> int:
    if isinstance(given, int):
        return given
    if len(given) != 2 or given[0] > given[1]:
        raise OptionError("has a concurrency that is no pair: [1, 8]", "or write one number")
    return given[1]


_CONCURRENCY: Final[Any] = Annotated[int, Ge(1)] | list[Annotated[int, Ge(1)]]


def concurrency_option(description: str) -> Any:
    """The option ``concurrency``: a number, or the second of two numbers."""
    return option(_CONCURRENCY, description, check=_processes)


def drop_option(
    description: str = "Extensions of members that are left out of the results.",
) -> Any:
    """The option ``drop``."""
    return option(list[str], description, default=())


def resources_option(description: str) -> Any:
    """The option ``resources``."""
    return option(ResourceOptions, description, check=_resources)


def timeout_option(seconds: float, description: str) -> Any:
    """The option ``timeout``; it is ``seconds`` if a spec does not set it."""
    return option(float | str, description, default=seconds, check=parse_seconds)


class Limits(Struct, frozen=True):
    """Limits of a step. ``timeout_s``: the time limit of each call. ``processes``: how many
    processes of the step run at a time, in the whole job; 0: one for each worker. ``memory_bytes``:
    address space of a process; 0: no limit. ``cpus``, ``gpus``: the needs of a process; 0: not
    set."""

    timeout_s: float
    processes: int = 0
    memory_bytes: int = 0
    cpus: float = 0
    gpus: float = 0

    def environment(self) -> dict[str, str]:
        """The environment variables that its processes get for these limits."""
        return {"OMP_NUM_THREADS": str(max(1, int(self.cpus)))} if self.cpus else {}


def limits_of(timeout: float, concurrency: int | None, resources: ResourceOptions | None) -> Limits:
    """The limits in the options of a step."""
    given = resources or ResourceOptions()
    return Limits(
        timeout,
        concurrency or 0,
        int(given.memory or 0),
        given.num_cpus or 0,
        given.num_gpus or 0,
    )


class PayloadStep(Step, frozen=True):
    """A step whose records are processed by a process of user code.

    ``known``: the description of the user's code (JSON), once it has been loaded; "" before.
    ``sources``: the hash of each of its files that was loaded then (JSON): processes compare their
    files with these hashes."""

    needs: ClassVar[Needs] = "payload"
    is_safe_from_network: ClassVar[bool] = False

    known: str = ""
    sources: str = ""

    @property
    def limits(self) -> Limits:
        """The limits of the step: time, memory and processes."""
        raise NotImplementedError

    @property
    def drop(self) -> tuple[str, ...]:
        """The extensions that are left out of its results."""
        return ()

    @property
    def columns(self) -> Mapping[str, str] | None:
        """If rows of tables stay rows, the types of the columns that it adds or changes."""
        return None

    @property
    def patience_s(self) -> float:
        """The longest time in seconds that one call in a process may take."""
        return self.limits.timeout_s

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return 1

    def program(self) -> dict[str, Any]:
        """The instructions for a process, in JSON types."""
        raise NotImplementedError

    def described(self, description: Mapping[str, Any]) -> Self:
        """The same step, with the ``description`` of its code."""
        known = {name: value for name, value in description.items() if name != "sources"}
        texts = [json.dumps(each, sort_keys=True) for each in (known, description["sources"])]
        return replace(self, known=texts[0], sources=texts[1])

    def given_program(self, number: int) -> dict[str, Any]:
        """The instructions for a process of the step with that ``number``, with the hashes of the
        code to use."""
        known = json.loads(self.sources) if self.sources else {}
        return {**self.program(), "number": number, "sources": known}

    def digest(self) -> str:
        """A hash that covers the options and the code."""
        own = super().digest()
        return f"{own}/{self.known}" if self.known else own

    def apply(self, records: RecordTable) -> RecordTable:
        """Not available: see ``dsort.workers.transformer``."""
        raise InvariantError(f"{self.kind} runs in processes of its own")


def parse_seconds(value: float | str) -> float:
    """The seconds of a duration: a number of seconds, or a text such as ``5m``. ``OptionError`` if
    ``value`` is no duration."""
    try:
        found = parse_duration_s(value) if isinstance(value, str) else float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e7:
        hint = "write 500ms, 45s, 5m or 1h"
        raise OptionError(f"has a timeout that is no duration: {value!r}", hint)
    return found
