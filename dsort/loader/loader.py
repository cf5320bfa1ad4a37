"""The loader: batches of one rank, in an order that any number of ranks can resume."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
import xxhash
from msgspec.structs import replace

from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT
from dsort.errors import InputError, SpecError, SpecProblem
from dsort.loader.decode import Decoder, Sample, decoder_of
from dsort.loader.order import (
    EpochOrder,
    LoaderCheck,
    OrderKind,
    Position,
    Remainder,
    Steps,
    check_batches,
)
from dsort.loader.sample_stream import PADDING, Budget, SampleStream
from dsort.loader.samples import sample_of
from dsort.loader.shard_file import ShardFile
from dsort.loader.shard_source import ShardSource
from dsort.loader.step_records import StepRecord, step_record
from dsort.loader.zipped import merged, refuse_other_cuts, results_of, zipped
from dsort.options import RunOptions
from dsort.reading.dataset import Dataset
from dsort.reading.places import Where
from dsort.reading.record_index import RecordIndex
from dsort.storage.bucket import ObjectInfo

__all__ = ["Loader", "LoaderState"]

LoaderState = dict[str, Any]
T = TypeVar("T")
BLOCK_BYTES: Final = 32 << 20
SMALL_BLOCK_BYTES: Final = 4 << 20
BLOCKS_MIN: Final = 3
FILE_AHEAD_BYTES: Final = 32 << 20
"""The limit of bytes read ahead for local files: memory that is used again soon is in a cache. With
members of 100 KB, 256 MiB ahead took 50% more processor time."""
WINDOW_BYTES_MIN: Final = 1 << 20
ORDERS_KEPT: Final = 3
SOURCES_MAX: Final = 256
"""The number of shards that are open at once where records are in one order: each keeps its index
in memory."""
THREADS_MAX: Final = 8


class Loader:
    """Batches of the records of a dataset, for one of ``world_size`` ranks.

    ::

        loader = Loader("s3://bucket/result/.dsort/JOB/manifest.json", batch_size=64, seed=1,
                        rank=rank, world_size=world_size, decode="rgb json")
        for batch in loader:                 # one epoch; the next ``for`` is the next epoch
            train(batch)                     # a list of dicts in the form of webdataset
            save(loader.state_dict())        # {manifest, seed, epoch, records_seen}

    ``where``: a manifest, a job's report, a bucket, a template, or a list of shards, in any
    container and store. If it is a list of results, they are read side by side, and have to be cut
    alike: a sample has the members of all results, and keys are compared.

    The order of an epoch depends on the dataset, ``seed``, ``epoch`` and ``order`` alone
    (``sequential``, ``shards``, ``window(k)``, ``records``: see ``dsort.loader.order``). All ranks
    have the same number of steps, for any number of records. ``remainder`` decides about the last
    records (``drop_last``, ``pad``, ``wrap``: see ``dsort.loader.order``).

    ``batch_size``: samples of one rank and step; None: single samples instead of lists. ``decode``:
    names of decoders (``"rgb json txt"``: see ``dsort.loader.decode``), or a function that takes
    and returns a sample; it runs in ``threads`` threads. At most about ``memory_bytes`` are read
    ahead. ``cache``: where indexes of shards are kept (see :class:`dsort.Dataset`).

    ``loader[i]`` reads only the i-th item of the epoch; any number of threads may do that.
    With PyTorch imported, a loader is an ``IterableDataset``, and its workers share the steps of
    their rank; it has ``state_dict`` and ``load_state_dict`` of torchdata's ``Stateful``.

    Raises ``SpecError`` for invalid arguments, and ``InputError`` and ``StorageError`` that name
    the shard.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """A loader that is also an ``IterableDataset`` of PyTorch, if PyTorch is imported."""
        return super().__new__(_known_to_torch(cls))

    def __init__(
        self,
        where: Where,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        batch_size: int | None = 1,
        epoch: int = 0,
        order: str = "shards",
        remainder: Remainder = "drop_last",
        decode: str | Sequence[str] | Decoder | None = None,
        threads: int | None = None,
        memory_bytes: int = 256 << 20,
        cache: str | Path | None = None,
        job_id: str | None = None,
        options: RunOptions | None = None,
        max_expansion: float = EXPANSION_MAX_DEFAULT,
    ) -> None:
        _check_numbers(rank, world_size, seed, batch_size, epoch, threads, memory_bytes)
        if remainder not in ("drop_last", "pad", "wrap"):
            hint = "drop_last, pad or wrap"
            raise SpecError([SpecProblem("remainder", f"there is no {remainder}", hint)])
        self.rank, self.world_size, self.batch_size = rank, world_size, batch_size
        self.seed, self.remainder = seed, remainder
        self.kind = OrderKind.parse(order)
        self.threads = threads or min(len(os.sched_getaffinity(0)), THREADS_MAX)
        self.memory_bytes = memory_bytes
        self._decode, self._decode_named = decoder_of(decode), decode
        self._dataset_of = partial(
            _datasets,
            where,
            job_id=job_id,
            cache=cache,
            options=options,
            max_expansion=max_expansion,
        )
        self._max_expansion = max_expansion
        self._datasets, self._process = self._dataset_of(), os.getpid()
        self._begin = self._now = Position(epoch, 0)
        self._orders: dict[int, EpochOrder] = {}
        self._pinned: dict[tuple[int, int], ObjectInfo] = {}
        refuse_other_cuts(self._datasets)
        if not len(self.dataset):
            raise InputError("there are no records to load", hint="name shards that have records")

    # -- a stream ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch, from where the loader began, or from the loaded state."""
        worker, workers = _torch_worker()
        steps = self._steps()
        self._now = self._begin
        if not steps.count:
            if not self._begin.records_seen:
                raise InputError(
                    f"{self.records:,} records are fewer than a step of {steps.global_batch:,}",
                    hint="remainder: pad or wrap, or a smaller batch_size",
                )
            self._begin = self._now = steps.after(0)
            return
        samples = self._samples(steps, worker, workers)
        with contextlib.closing(samples):
            for turn, step in enumerate(range(worker, steps.count, workers)):
                batch = [next(samples) for _ in range(steps.batch_size)]
                is_last = step + workers >= steps.count
                # Workers take turns: each of them makes one step in a turn.
                done = steps.count if is_last else (turn + 1) * workers
                self._now = steps.after(done)
                if is_last:
                    self._begin = self._now
                yield batch if self.batch_size else batch[0]
            next(samples, None)  # there is no further sample: this lets the generator finish

    def __len__(self) -> int:
        """The number of items in the rest of the epoch: the same on all ranks."""
        return self._steps().count

    def __getitem__(self, at: int) -> Any:
        """Item ``at`` of the rest of the epoch. Reads only its records."""
        steps = self._steps()
        number = self._number(steps, at)
        places = steps.places(number, number + 1)
        batch = [self._sample(steps, place) for place in places.tolist()]
        return batch if self.batch_size else batch[0]

    def where(self, step: int) -> list[StepRecord]:
        """The records of all ranks in step ``step`` of the rest of the epoch, in order, with the
        places of their bytes. Reads the headers of shards whose records have no known places
        yet."""
        steps = self._steps()
        number = self._number(steps, step)
        found = []
        for rank in range(self.world_size):
            places = replace(steps, rank=rank).places(number, number + 1)
            located = (self._located(steps, place) for place in places.tolist())
            found += [step_record(own, rank, *at) for at in located for own in self._all()]
        return found

    def set_epoch(self, epoch: int) -> None:
        """Set the position to the first record of ``epoch``."""
        _check_number("epoch", epoch, 0)
        self._begin = self._now = Position(epoch, 0)

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` reads."""
        return self._begin.epoch

    @property
    def dataset(self) -> Dataset:
        """The records of the loader, by number and key; for several results, the records of the
        first result."""
        return self._all()[0]

    def _all(self) -> list[Dataset]:
        if self._process != os.getpid():  # in a fork, open files belong to the parent process
            self._datasets, self._process = self._dataset_of(), os.getpid()
        return self._datasets

    @property
    def records(self) -> int:
        """The number of records of an epoch."""
        return len(self._datasets[0])

    @property
    def digest(self) -> str:
        """A hash of the dataset and of the kind of order. Together with the seed and the number of
        an epoch, it decides the order of the epoch."""
        found = [each.digest for each in self._datasets]
        whole = found[0] if len(found) == 1 else xxhash.xxh3_128_hexdigest("".join(found).encode())
        return f"{whole}-{self.kind}"

    def check(self, steps: int) -> LoaderCheck:
        """Figures of the next ``steps`` of all ranks together. Does not read records."""
        mine = self._steps()
        steps = min(steps, mine.count)
        seen = mine.begin.records_seen
        places = np.arange(seen, seen + steps * mine.global_batch, dtype=np.int64)
        turns = places // mine.records
        shards, rows = np.empty_like(places), np.empty_like(places)
        for turn in np.unique(turns).tolist():
            at = turns == turn
            order = self._order(self._epoch(mine, turn))
            shards[at], rows[at] = order.locate(places[at] - turn * mine.records)
        return check_batches(shards, rows, mine.global_batch, mine.records)

    def __repr__(self) -> str:
        rank, epoch = f"rank {self.rank} of {self.world_size}", f"epoch {self._begin.epoch}"
        size = f"batches of {self.batch_size}" if self.batch_size else "single samples"
        what = repr(self._datasets[0]).strip("<>")
        return f"<Loader of a {what}: {self.kind}, seed {self.seed}, {epoch}, {rank}, {size}>"

    def close(self) -> None:
        """Release open shards. An iterator ends its threads when it is closed or no longer
        referenced."""
        for each in self._datasets:
            each.close()

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> LoaderState:
        """The position in the stream: ``manifest`` (:attr:`digest`), ``seed``, ``epoch``, and
        ``records_seen``, which counts the records of the epoch that all ranks together have
        taken."""
        return {
            "manifest": self.digest,
            "seed": self.seed,
            "epoch": self._now.epoch,
            "records_seen": self._now.records_seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``, on any number of ranks and with any batch size. ``InputError``
        if the state belongs to another dataset, order or seed."""
        numbers = [state.get(name) for name in ("seed", "epoch", "records_seen")]
        if any(type(each) is not int for each in numbers) or "manifest" not in state:
            raise InputError("this is no state of a loader", hint="state_dict() makes one")
        seed, epoch, seen = (int(each) for each in numbers if each is not None)
        if state["manifest"] != self.digest:
            raise InputError(
                f"the state is of the dataset and order {state['manifest']}, the loader of "
                f"{self.digest}",
                hint="make the loader with the same manifest and the same order",
            )
        if seed != self.seed:
            raise InputError(f"the state is of seed {seed}, this loader has {self.seed}")
        if epoch < 0 or not 0 <= seen < self.records:
            raise InputError(f"the state has seen {seen:,} of {self.records:,} records")
        self._begin = self._now = Position(epoch, seen)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickling (a process that is no fork): the arguments of the loader and its
        position."""
        named = self._dataset_of
        made = {
            "rank": self.rank,
            "world_size": self.world_size,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "order": str(self.kind),
            "remainder": self.remainder,
            "decode": self._decode_named,
            "threads": self.threads,
            "memory_bytes": self.memory_bytes,
            **named.keywords,
        }
        return _made_again, (named.args[0], made, self._begin)

    # -- internals ---------------------------------------------------------------------------------

    def _steps(self) -> Steps:
        size = self.batch_size or 1
        return Steps(self.records, self._begin, self.rank, self.world_size, size, self.remainder)

    def _epoch(self, steps: Steps, turn: int) -> int:
        return steps.begin.epoch + (0 if self.remainder == "pad" else turn)

    def _order(self, epoch: int) -> EpochOrder:
        order = self._orders.get(epoch)
        if order is None:
            counts = self._datasets[0].counts
            order = EpochOrder(counts, self.digest, self.seed, epoch, self.kind)
            orders = {**self._orders, epoch: order}
            # A new dictionary: other threads may be reading the old one.
            self._orders = {each: orders[each] for each in sorted(orders)[-ORDERS_KEPT:]}
        return order

    def _number(self, steps: Steps, at: int) -> int:
        number = at + steps.count if at < 0 else at
        if not 0 <= number < steps.count:
            raise IndexError(f"the epoch has {steps.count:,} steps, none is number {at:,}")
        return number

    def _located(self, steps: Steps, place: int) -> tuple[int, int]:
        """(shard, number in the shard) of the record at one place."""
        inside = np.array([place % steps.records], np.int64)
        epoch = self._epoch(steps, place // steps.records)
        shards, rows = self._order(epoch).locate(inside)
        return int(shards[0]), int(rows[0])

    def _sample(self, steps: Steps, place: int) -> Sample:
        shard, row = self._located(steps, place)
        sample = merged(
            [sample_of(each.record(shard, row), each.places[shard].uri) for each in self._all()]
        )
        if place >= steps.records and self.remainder == "pad":
            sample[PADDING] = True
        return sample if self._decode is None else self._decode(sample)

    def _samples(self, steps: Steps, worker: int, workers: int) -> Generator[Sample, None, None]:
        count = len(self._all())
        if count == 1:
            return self._pipeline(steps, 0, self._decode).samples(worker, workers)
        pipelines = [self._pipeline(steps, at, None) for at in range(count)]
        streams = [each.samples(worker, workers) for each in pipelines]
        return zipped(streams, self._decode, self.threads)

    def _pipeline(self, steps: Steps, at: int, decode: Decoder | None) -> SampleStream:
        """The stream of result number ``at``."""
        dataset = self._all()[at]
        record_bytes = max(dataset.size_bytes // self.records, 1)
        most = self.memory_bytes // len(self._datasets)
        if dataset.places[0].is_file:
            most = min(most, FILE_AHEAD_BYTES)
        memory = max(most, BLOCKS_MIN * SMALL_BLOCK_BYTES)
        block = min(BLOCK_BYTES, max(memory // BLOCKS_MIN, SMALL_BLOCK_BYTES))
        budget = Budget(max(block // record_bytes, 1), block, max(memory // block, 2))
        width = max(self.kind.window, 1)
        if self.kind.is_of_records:
            width = min(len(dataset.places), SOURCES_MAX) // 2
        return SampleStream(
            steps,
            self._order,
            partial(self._source, at),
            budget=budget,
            sources_max=2 * width + 2,
            threads=self.threads,
            decode=decode,
            is_forward=not self.kind.is_of_records,
        )

    def _source(self, at: int, shard: int) -> ShardSource:
        dataset = self._all()[at]
        place = dataset.places[shard]
        share = self.memory_bytes // (2 * self.kind.window + 1)

        def opened() -> ShardFile:
            file = ShardFile(place, self._pinned.get((at, shard)), most=self.threads)
            self._pinned[at, shard] = file.info
            return file

        def known(file: ShardFile) -> RecordIndex | None:
            index = dataset.known_index(place, file.info)
            if index is None and self.kind.is_of_records:
                index = dataset.record_index(shard)
                ShardFile(place, file.info, most=1).close()  # raises if the shard has changed
            return index

        def learned(file: ShardFile, index: RecordIndex) -> None:
            dataset.keep_index(place, file.info, index)

        return ShardSource(
            place,
            place.uri,
            opened,
            known,
            learned,
            window_bytes=min(BLOCK_BYTES, max(share, WINDOW_BYTES_MIN)),
            max_expansion=self._max_expansion,
            is_forward=not self.kind.is_of_records,
        )


def _datasets(where: Where, **options: Any) -> list[Dataset]:
    return [Dataset(each, **options) for each in results_of(where)]


def _made_again(where: Where, made: Mapping[str, Any], begin: Position) -> Loader:
    loader = Loader(where, **made)
    loader._begin = loader._now = begin
    return loader


_TORCH: dict[type, type] = {}


def _known_to_torch(kind: type[T]) -> type[T]:
    """If PyTorch is imported, ``kind`` as a subclass of its ``IterableDataset``, because its
    ``DataLoader`` treats any other dataset as a map from numbers."""
    base = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    if base is None or issubclass(kind, base):
        return kind
    if kind not in _TORCH:
        names = {"__doc__": kind.__doc__, "__module__": kind.__module__}
        _TORCH[kind] = type(kind.__name__, (kind, base), names)
    return _TORCH[kind]


def _torch_worker() -> tuple[int, int]:
    """(number of this process among the workers of a PyTorch ``DataLoader``, number of workers);
    (0, 1) outside of a worker."""
    info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def _check_number(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        problem = f"{value!r} is no whole number from {least} on"
        raise SpecError([SpecProblem(name, problem)])


def _check_numbers(
    rank: int,
    world_size: int,
    seed: int,
    batch_size: int | None,
    epoch: int,
    threads: int | None,
    memory_bytes: int,
) -> None:
    least = {"world_size": 1, "batch_size": 1, "epoch": 0, "threads": 1, "memory_bytes": 1}
    given = {
        "world_size": world_size,
        "batch_size": 1 if batch_size is None else batch_size,
        "epoch": epoch,
        "threads": 1 if threads is None else threads,
        "memory_bytes": memory_bytes,
    }
    for name, value in given.items():
        _check_number(name, value, least[name])
    _check_number("rank", rank, 0)
    if type(seed) is not int:
        raise SpecError([SpecProblem("seed", f"{seed!r} is no whole number")])
    if rank >= world_size:
        problem = f"there is no rank {rank} of {world_size}"
        raise SpecError([SpecProblem("rank", problem, "ranks go from 0 to world_size - 1")])
