"""The cost of a shuffle in each container, beside plain tars and beside other programs.

Rates count payload: the same records in two containers are the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.container_contenders import (
    TABLE_KEY,
    dsort_on,
    duckdb,
    part,
    polars,
    pyarrow,
    terashuf,
    webdataset_on,
)
from benchmarks.container_data import ContainerData, ContainerRequest, make_containers
from benchmarks.contenders import Contender
from benchmarks.measure import Bench, round_robin
from benchmarks.memory import LimitedSampler, MemoryLimit, NotPermittedError, TreeSampler
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings

__all__ = ["Entry", "codecs", "compare", "containers", "tables", "tables_limited"]

SUFFIXES = (".zip", ".tfrecord", ".mds")
CODECS = (".tgz", ".tar.zst", ".tar.lz4")
TABLES = ("100k", "3k-files", "3k")
TABLES_LIMITED = ("100k", "3k")
SAMPLE_SECONDS = 0.1
START_BYTES, START_SHARDS, START_ROUNDS = 20_000, 2, 2
"""With so little data, a run consists of its start: interpreters, imports, processes."""
TABLES_FACTOR = 5
TABLES_LIMIT_BYTES_MIN = 400_000_000
"""A lower limit cannot hold an interpreter with Arrow for each worker."""
DATABASE_SHARE = 0.8
"""The share of the limit that a database may use: it counts its buffers, but not its code."""
LIMITED_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender, and the data on which it runs."""

    contender: Contender
    kind: str
    suffix: str
    is_rival: bool = False


def containers(bench: Bench, settings: Settings) -> Measured:
    """In memory: each container to itself, tars to each container, and lines beside other
    programs."""
    measured = Measured([], [])
    shards = settings.shards
    for kind in ("100k", "3k"):
        entries = [Entry(dsort_on("tar", shards, move="map"), kind, ".tar")]
        for suffix in SUFFIXES:
            name = suffix.strip(".")
            entries.append(Entry(dsort_on(name, shards, move="map"), kind, suffix))
            to = dsort_on(f"tar-{name}", shards, move="map", output_suffix=suffix)
            entries.append(Entry(to, kind, ".tar"))
        if kind == "3k":
            entries.append(Entry(dsort_on("jsonl", shards, move="map"), kind, ".jsonl"))
            entries += [
                Entry(rival, kind, ".jsonl", is_rival=True)
                for rival in (
                    terashuf("terashuf", is_in_memory=False),
                    terashuf("python", is_in_memory=True),
                    duckdb("lines"),
                    polars("lines"),
                )
            ]
        _add(measured, compare(bench, settings, "containers", kind, entries))
    _add(measured, _starts(bench, settings, "containers", measured, ".tar", ""))
    return measured


def codecs(bench: Bench, settings: Settings) -> Measured:
    """Compressed tars of words and random bytes: the shuffle, and its parts alone."""
    measured = Measured([], [])
    for suffix in CODECS:
        entries = [
            Entry(dsort_on("dsort", settings.shards, move="spill"), "half", suffix),
            Entry(part("decode", suffix, suffix), "half", suffix),
            Entry(part("encode", suffix, suffix), "half", ".tar"),
            Entry(dsort_on("move", settings.shards, move="spill"), "half", ".tar"),
        ]
        if suffix == ".tgz":
            entries.append(Entry(webdataset_on(suffix), "half", suffix, is_rival=True))
        _add(measured, compare(bench, settings, "codecs", suffix.strip("."), entries))
    return measured


def tables(bench: Bench, settings: Settings) -> Measured:
    """Rows of Parquet, in memory. With less data, the start would take most of the CPU time."""
    settings = replace(settings, total_bytes=settings.limited_total_bytes)
    measured = Measured([], [])
    for kind in TABLES:
        entries = [
            Entry(dsort_on("dsort", settings.shards, key_field=TABLE_KEY), kind, ".parquet"),
            Entry(pyarrow(), kind, ".parquet", is_rival=True),
            Entry(duckdb("rows"), kind, ".parquet", is_rival=True),
            Entry(polars("rows"), kind, ".parquet", is_rival=True),
        ]
        _add(measured, compare(bench, settings, "tables", kind, entries))
    _add(measured, _starts(bench, settings, "tables", measured, ".parquet", TABLE_KEY))
    return measured


def tables_limited(bench: Bench, settings: Settings) -> Measured:
    """Rows of Parquet with five times the memory that the whole tree may use; caches dropped."""
    total_bytes = settings.limited_total_bytes
    if total_bytes > TABLES_LIMIT_BYTES_MIN:  # small test data stays small
        total_bytes = max(total_bytes, TABLES_FACTOR * TABLES_LIMIT_BYTES_MIN)
    limited = replace(settings, total_bytes=total_bytes, rounds=1, slow_rounds=1)
    impatient = replace(bench, timeout_seconds=min(bench.timeout_seconds, LIMITED_SECONDS_MAX))
    limit_bytes = max(total_bytes // TABLES_FACTOR, TABLES_LIMIT_BYTES_MIN)
    measured = Measured([], [])
    for kind in TABLES_LIMITED:
        database_bytes = int(DATABASE_SHARE * limit_bytes)
        entries = [
            Entry(dsort_on("dsort", settings.shards, key_field=TABLE_KEY), kind, ".parquet"),
            Entry(duckdb("rows", memory_bytes=database_bytes), kind, ".parquet", is_rival=True),
            Entry(polars("rows", is_streaming=True), kind, ".parquet", is_rival=True),
        ]
        try:
            found = compare(impatient, limited, "tables-limited", kind, entries, limit_bytes)
        except NotPermittedError as error:
            found = Measured([], [Skip("tables-limited", kind, str(error))])
        _add(measured, found)
    return measured


def _starts(
    bench: Bench, settings: Settings, suite: str, measured: Measured, suffix: str, key_field: str
) -> Measured:
    """Runs of dsort on very little data, if ``measured`` has runs of dsort."""
    if not any("phase_seconds" in run.details for run in measured.runs):
        return Measured([], [])
    entry = Entry(dsort_on("dsort", START_SHARDS, key_field=key_field), "3k", suffix)
    small = replace(
        settings, only=(), total_bytes=START_BYTES, shards=START_SHARDS, rounds=START_ROUNDS
    )
    return compare(bench, small, f"{suite}-start", "start", [entry])


def _add(measured: Measured, more: Measured) -> None:
    measured.runs.extend(more.runs)
    measured.skips.extend(more.skips)


def compare(
    bench: Bench,
    settings: Settings,
    suite: str,
    profile: str,
    entries: Sequence[Entry],
    limit_bytes: int = 0,
) -> Measured:
    """Run the entries that the settings ask for, in turn, each on its own data."""
    wanted = [each for each in entries if settings.wants(suite, profile, each.contender.name)]
    skips = [
        Skip(suite, each.contender.name, each.contender.missing)
        for each in wanted
        if each.contender.missing
    ]
    able = [each for each in wanted if not each.contender.missing]
    data = {each.contender.name: _data(settings, each) for each in able}
    rivals = {each.contender.name for each in able if each.is_rival}

    def one(contender: Contender, number: int) -> Run:
        found = data[contender.name]
        if limit_bytes:
            run = _limited(bench, contender, found, suite, number, limit_bytes)
        else:
            sampler = TreeSampler(SAMPLE_SECONDS)
            run = bench.run(contender, found, suite=suite, number=number, sampler=sampler)
        is_hopeful = bool(limit_bytes) and contender.name in rivals
        return replace(run, profile=profile, may_fail=is_hopeful)

    turns = [
        (each.contender, settings.slow_rounds if each.contender.is_slow else settings.rounds)
        for each in able
    ]
    return Measured(list(round_robin(turns, one, until_s=settings.until_s)), skips)


def _data(settings: Settings, entry: Entry) -> ContainerData:
    request = ContainerRequest(entry.kind, entry.suffix, settings.total_bytes, settings.shards)
    return make_containers(settings.directory, request)


def _limited(
    bench: Bench,
    contender: Contender,
    data: ContainerData,
    suite: str,
    number: int,
    limit_bytes: int,
) -> Run:
    with MemoryLimit(limit_bytes) as limit:
        run = bench.run(
            contender,
            data,
            suite=suite,
            number=number,
            is_cold=True,
            limit=limit,
            sampler=LimitedSampler(limit),
        )
        run.details["limit_bytes"] = limit_bytes
        run.details["kill_count"] = limit.kill_count
    return run
