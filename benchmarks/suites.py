"""Suites on the files of one machine, and the list of all suites.

Each suite returns a list of runs, and a list of skipped measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from benchmarks.alone_suites import loader, planning, service
from benchmarks.container_suites import codecs, containers, tables, tables_limited
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.data import DataSet
from benchmarks.ingest import ingest
from benchmarks.measure import Bench, round_robin
from benchmarks.memory import LimitedSampler, MemoryLimit, NotPermittedError, TreeSampler
from benchmarks.results import Run, Skip
from benchmarks.settings import Measured, Settings, data_of
from benchmarks.step_suites import steps
from benchmarks.store_suites import nodes, nodes_files, s3, s3_flat

__all__ = ["MAIN_SUITES", "QUICK_SUITES", "SUITES", "warm_entries"]

LIMITED_FACTORS = {"limited": 3, "limited-tenth": 10}
"""The size of the data divided by the size of the memory."""
SAMPLE_SECONDS = 0.1
FLATNESS_SCALES = (1, 4)
FLATNESS_MEMORY_BYTES_MAX = 512 * 1024**2
SLOW = tuple(name for name, contender in CONTENDERS.items() if contender.is_slow)
SMALL_BYTES, SMALL_SHARDS = 10_000_000, 4


LIMITED_ONLY = ("32k",)
"""Profiles for the limited suites only: 32 KB is about the least size that is read by range, which
makes no difference in memory."""


def _shards_for(settings: Settings, total_bytes: int) -> int:
    """The number of shards with which a shard has the same size for every size of the data."""
    return max(1, round(settings.shards * total_bytes / settings.total_bytes))


def warm_entries(settings: Settings, profile: str) -> list[tuple[Contender, int]]:
    """The contenders that run on ``profile`` with a warm cache, and their numbers of rounds.

    Slow contenders run only on records of 100 KB, unless the user names them.
    """
    names: tuple[str, ...] = ("cp", "rsync", "dsort-map")
    if not settings.is_quick:
        names += ("dsort-range", "dsort-spill")
    if profile == "100k":
        names += ("tarfile", "webdataset", "ray") if settings.is_quick else SLOW
    return [
        (contender, settings.slow_rounds if contender.is_slow else settings.rounds)
        for contender in _chosen(settings, names)
        if settings.wants("warm", profile, contender.name)
    ]


def _chosen(settings: Settings, names: Sequence[str]) -> list[Contender]:
    return [CONTENDERS[name] for name in settings.contenders or names]


def _able(
    suite: str, entries: Sequence[tuple[Contender, int]]
) -> tuple[list[tuple[Contender, int]], list[Skip]]:
    able = [(contender, rounds) for contender, rounds in entries if not contender.missing]
    skips = [Skip(suite, each.name, each.missing) for each, _ in entries if each.missing]
    return able, skips


def warm(bench: Bench, settings: Settings) -> Measured:
    """Inputs in the page cache, sync after every run."""
    measured = Measured([], [])
    for profile in settings.profiles_of("warm"):
        if profile in LIMITED_ONLY and not settings.contenders:
            continue
        data = data_of(settings, profile, settings.total_bytes, settings.shards)
        entries, skips = _able("warm", warm_entries(settings, profile))
        measured.skips.extend(skips)

        def one(contender: Contender, number: int, data: DataSet = data) -> Run:
            sampler = TreeSampler(SAMPLE_SECONDS)
            return bench.run(contender, data, suite="warm", number=number, sampler=sampler)

        measured.runs.extend(round_robin(entries, one, until_s=settings.until_s))
    return measured


def limited(bench: Bench, settings: Settings) -> Measured:
    """Data three times as large as the memory that the whole tree may use, caches dropped."""
    quick_rounds = {"100k": 2}
    return _limited_suite(bench, settings, "limited", quick_rounds, rounds_max=3, without=())


def limited_tenth(bench: Bench, settings: Settings) -> Measured:
    """Data ten times as large as the memory, which is as much as for ``limited``."""
    if settings.is_quick and not settings.only:
        return Measured([], [Skip("limited-tenth", "all", "left out of --quick")])
    return _limited_suite(bench, settings, "limited-tenth", {}, rounds_max=2, without=LIMITED_ONLY)


def _limited_suite(
    bench: Bench,
    settings: Settings,
    suite: str,
    quick_rounds: Mapping[str, int],
    *,
    rounds_max: int,
    without: Sequence[str],
) -> Measured:
    names = ("cp", "dsort", "dsort-spill")
    measured = Measured([], [])
    factor = LIMITED_FACTORS[suite]
    total_bytes = settings.limited_total_bytes * factor // LIMITED_FACTORS["limited"]
    skipped = (*without, *(LIMITED_ONLY if settings.is_quick else ()))
    for profile in settings.profiles_of(suite):
        if profile in skipped and not settings.contenders:
            continue
        rounds = quick_rounds.get(profile, 1) if settings.is_quick else rounds_max
        rounds = min(rounds, settings.rounds)
        chosen = [
            (each, rounds)
            for each in _chosen(settings, names)
            if settings.wants(suite, profile, each.name)
        ]
        entries, skips = _able(suite, chosen)
        measured.skips.extend(skips)
        data = data_of(settings, profile, total_bytes, _shards_for(settings, total_bytes))

        def one(contender: Contender, number: int, data: DataSet = data) -> Run:
            return _limited_run(bench, contender, data, number, suite)

        try:
            measured.runs.extend(round_robin(entries, one, until_s=settings.until_s))
        except NotPermittedError as error:
            measured.skips.append(Skip(suite, profile, str(error)))
    return measured


def _limited_run(bench: Bench, contender: Contender, data: DataSet, number: int, suite: str) -> Run:
    limit_bytes = data.total_bytes // LIMITED_FACTORS[suite]
    with MemoryLimit(limit_bytes) as limit:
        sampler = LimitedSampler(limit)
        run = bench.run(
            contender,
            data,
            suite=suite,
            number=number,
            is_cold=True,
            limit=limit,
            sampler=sampler,
        )
        run.details["limit_bytes"] = limit_bytes
        run.details["group_peak_bytes"] = limit.peak_bytes
        run.details["own_peak_bytes"] = sampler.own_bytes_peak
        run.details["kill_count"] = limit.kill_count
    return run


def flatness(bench: Bench, settings: Settings) -> Measured:
    """Peak memory of dsort's workers on data of one and four times the size."""
    if settings.is_quick:
        return Measured([], [Skip("flatness", "all", "left out of --quick")])
    measured = Measured([], [])
    names = ("dsort-map", "dsort-spill")
    for profile in [name for name in settings.profiles if name in ("100k", "1k")]:
        for scale in FLATNESS_SCALES:
            total_bytes = settings.total_bytes * scale
            data = data_of(settings, profile, total_bytes, settings.shards * scale)

            def one(
                contender: Contender, number: int, data: DataSet = data, scale: int = scale
            ) -> Run:
                return _sampled_run(bench, contender, data, number, scale)

            entries = [(CONTENDERS[name], 1) for name in names]
            measured.runs.extend(round_robin(entries, one, until_s=settings.until_s))
    return measured


def _sampled_run(bench: Bench, contender: Contender, data: DataSet, number: int, scale: int) -> Run:
    sampler = TreeSampler()
    run = bench.run(
        contender,
        data,
        suite="flatness",
        number=number,
        sampler=sampler,
        memory_bytes_max=FLATNESS_MEMORY_BYTES_MAX if contender.name == "dsort-spill" else None,
    )
    run.details["profile"] = data.profile
    run.details["scale"] = scale
    run.details["worker"] = asdict(sampler.worker)
    run.details["coordinator"] = asdict(sampler.first)
    return run


def small(bench: Bench, settings: Settings) -> Measured:
    """A job of 10 MB: the cost of its start."""
    data = data_of(settings, "100k", SMALL_BYTES, SMALL_SHARDS)
    entries = [(each, settings.rounds) for each in _chosen(settings, ("cp", "dsort"))]
    able, skips = _able("small", entries)

    def one(contender: Contender, number: int) -> Run:
        return bench.run(contender, data, suite="small", number=number)

    return Measured(list(round_robin(able, one, until_s=settings.until_s)), skips)


MAIN: dict[str, Callable[[Bench, Settings], Measured]] = {
    "warm": warm,
    "limited": limited,
    "small": small,
    "planning": planning,
    "limited-tenth": limited_tenth,
    "tables": tables,
    "tables-limited": tables_limited,
    "s3": s3,
    "ingest": ingest,
    "codecs": codecs,
    "nodes-files": nodes_files,
    "nodes": nodes,
    "loader": loader,
    "s3-flat": s3_flat,
}
"""The default suites, in the order of a run. Suites that use spare time for more rounds come before
suites that measure by themselves. Suites that need much disk come last."""

SUITES = MAIN | {
    "flatness": flatness,
    "service": service,
    "containers": containers,
    "steps": steps,
}

QUICK_SUITES = ("warm", "limited", "small")
MAIN_SUITES = tuple(MAIN)
"""The default suites: all that pages quote."""
