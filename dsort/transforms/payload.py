"""The base of steps that read payload.

They do not run in the process of a worker, but in processes of user code (``dsort.user_code``), and
make new records. So a job with such a step always spills.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired, Self

from annotated_types import Ge, Le
from msgspec import Struct
from typing_extensions import TypedDict

from dsort.durations import parse_duration_s
from dsort.errors import InvariantError
from dsort.order.base import OptionError
from dsort.sizes import parse_size_bytes
from dsort.transforms.base import OPTIONS_CONFIG, Step

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

__all__ = ["Limits", "PayloadStep", "ResourceOptions", "parse_limits", "parse_seconds"]

Concurrency = Annotated[int, Ge(1)] | list[Annotated[int, Ge(1)]]


class ResourceOptions(TypedDict):
    """What each process of a step has."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    memory: NotRequired[str]
    """Address space at most: `4GiB`. What wants more gets a MemoryError. Default: no limit."""
    num_cpus: NotRequired[Annotated[float, Ge(0), Le(1024)]]
    """CPUs that it uses: as many threads are let for its algebra (`OMP_NUM_THREADS`), and so many
    fewer processes run at a time. Default: one."""
    num_gpus: NotRequired[Annotated[float, Ge(0), Le(1024)]]
    """GPUs that it has for itself, as `CUDA_VISIBLE_DEVICES` tells it: a whole number, or a part of
    one. A worker has one such process. On Ray, workers ask for them. Default: it is given none, and
    sees what its worker sees."""


class Limits(Struct, frozen=True):
    """Limits of a step. ``timeout_s``: for each call. ``processes``: of the step at a time, in the
    whole job; 0: one for each worker. ``memory_bytes``: address space of a process; 0: no limit.
    ``cpus``, ``gpus``: of a process; 0: not set."""

    timeout_s: float
    processes: int = 0
    memory_bytes: int = 0
    cpus: float = 0
    gpus: float = 0

    def environment(self) -> dict[str, str]:
        """The environment variables that its processes get for these limits."""
        return {"OMP_NUM_THREADS": str(max(1, int(self.cpus)))} if self.cpus else {}

    def options(self) -> dict[str, Any]:
        """The limits in the form of a spec, without those that are not set."""
        found: dict[str, Any] = {"timeout": self.timeout_s}
        if self.processes:
            found["concurrency"] = self.processes
        resources: dict[str, Any] = {}
        if self.memory_bytes:
            resources["memory"] = str(self.memory_bytes)
        if self.cpus:
            resources["num_cpus"] = self.cpus
        if self.gpus:
            resources["num_gpus"] = self.gpus
        return {**found, "resources": resources} if resources else found


class PayloadStep(Step):
    """A step whose records are processed by a process of user code."""

    __slots__ = ()

    needs: ClassVar[Any] = "payload"
    is_safe_from_network: ClassVar[bool] = False

    limits: Limits
    known: str
    """The description of the user's code (JSON), once it has been loaded; "" before."""
    sources: str
    """The hash of each of its files that was loaded then (JSON): processes compare their files with
    these hashes."""

    columns: tuple[tuple[str, str], ...] = ()
    """The types of columns that it adds or changes, where rows of tables become rows."""
    drop: tuple[str, ...]

    @property
    def patience_s(self) -> float:
        """The longest time in seconds that one call in a process may take."""
        return self.limits.timeout_s

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return 1

    @abstractmethod
    def program(self) -> dict[str, Any]:
        """The instructions for a process, in JSON types."""

    def described(self, description: Mapping[str, Any]) -> Self:
        """The same step, with the ``description`` of its code."""
        known = {name: value for name, value in description.items() if name != "sources"}
        texts = [json.dumps(each, sort_keys=True) for each in (known, description["sources"])]
        return replace(self, known=texts[0], sources=texts[1])  # type: ignore[type-var]

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


def parse_seconds(value: float | str, field: str = "timeout") -> float:
    """The seconds of a duration: a number of seconds, or a text such as ``5m``. ``OptionError`` if
    it is none."""
    try:
        found = parse_duration_s(value) if isinstance(value, str) else float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e7:
        hint = "write 500ms, 45s, 5m or 1h"
        raise OptionError(f"has a {field} that is no duration: {value!r}", hint)
    return found


def parse_limits(options: Mapping[str, Any], timeout: str) -> Limits:
    """The limits of time, memory and processes in ``options``. ``timeout``: the default for each
    call."""
    seconds = parse_seconds(options.get("timeout", timeout))
    processes = options.get("concurrency", 0)
    if isinstance(processes, list):
        if len(processes) != 2 or processes[0] > processes[1]:
            raise OptionError("has a concurrency that is no pair: [1, 8]", "or write one number")
        processes = processes[1]
    resources = options.get("resources", {})
    cpus, gpus = resources.get("num_cpus", 0), resources.get("num_gpus", 0)
    if gpus > 1 and gpus != int(gpus):
        problem = f"has a resources.num_gpus of {gpus:g}"
        raise OptionError(problem, "write a whole number, or a part of one")
    try:
        memory_bytes = parse_size_bytes(resources.get("memory", 0))
    except ValueError as error:
        raise OptionError(f"has a resources.memory that is no size: {error}") from None
    return Limits(seconds, processes, memory_bytes, cpus, gpus)
