"""The blocks of pages: results in, text out. Pure.

A block is a function of all results, by suite. It gives None where nobody measured what it tells
of, so that a page keeps what it says; where every run failed, it says that. A table ends with the
line that says when, on what and how often it was measured; a block inside a sentence is its figures
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.page_parts import (
    FAILED,
    NAMES,
    NONE,
    Results,
    Row,
    framed,
    from_report,
    good,
    is_compared,
    least_of,
    name_of,
    rate_of,
    rows_of,
    runs_of,
    spread,
)
from benchmarks.plots import SUITES
from benchmarks.results import GIB, Run, cpu_per_gib, ratios_of

__all__ = ["BLOCKS"]

PROFILES = {"1k": "1 KB", "32k": "32 KB", "100k": "100 KB", "4m": "4 MB"}
PLACES = {"warm": "in memory", "limited": "in a third", "limited-tenth": "in a tenth"}
SERVERS = {"s3": "SeaweedFS", "s3-radosgw": "radosgw"}
CODECS = {"tgz": "`.tgz`", "tar.zst": "`.tar.zst`", "tar.lz4": "`.tar.lz4`"}
CODEC_PARTS = ("encode", "decode", "move")
NODES = {"nodes-files": "from file to file", "nodes": "from bucket to bucket"}
FILTERS = {
    "filter over the index": """`filter: 'size("jpg") < 5_000_000 && has("cls")'`""",
    "filter over keys": """`filter: 'key.matches("^[0-9]+$")'`""",
    "filter over classes": """`filter: 'ext("cls") >= 0'`""",
    "filter over JSON": """`filter: 'ext("json").score >= 0.0 && size("jpg") < 5_000_000'`""",
    "outputs by key": "`outputs` by fractions of the key",
    "outputs by JSON": """`outputs` with `split_by: 'ext("json").url'`""",
    "outputs by condition": """`outputs` by condition: `ext("cls") < 500`""",
    "exact outputs": "`outputs` by fractions, `exact`",
    "exact outputs of 1000 classes": "the same with `stratify: cls`, 1,000 classes",
    "outputs in two buckets": "`outputs` by fractions, in two buckets",
}
MAPS = {
    "plain": "dsort, shuffle alone",
    "map": "**dsort, shuffle and `map`**",
    "webdataset": "webdataset `.map`, without a shuffle",
    "ray_data": "Ray Data `map_batches`, without a shuffle",
}
RESIZERS = {
    "pillow": "a bare loop over Pillow, which writes nothing",
    "resize": "**dsort: `map` with `decode: {jpg: pil}`, shuffle, new shards**",
}
TRANSPORTS = {
    "direct": "**straight from agent to worker**",
    "ray": "by Ray's object store",
    "socket": "a bare socket and `sendfile`",
}
INGESTERS = {
    "dsort": ("**`dsort ingest`**", "shuffled by a defined permutation"),
    "webdataset": ("webdataset `ShardWriter`, names shuffled before", "one process"),
}
LOADED = {
    "3k": "3 KB, no decoding",
    "100k": "100 KB, no decoding",
    "jpeg": "JPEG, 256 × 256, `rgb8`",
}
LOADERS = {
    "dsort": "dsort, reading forward",
    "dsort, by its index": "dsort, by its index",
    "dsort, 1 thread": "dsort, forward, 1 thread",
    "webdataset": "webdataset",
    "webdataset, 2 threads": "webdataset, 2 threads",
    "webdataset, 2 workers": "webdataset, 2 workers",
}


def _summary(results: Results) -> str | None:
    """How fast beside ``cp``, in one sentence."""
    words = []
    for suites, name, place in (
        (("warm",), "dsort-map", "of the same tars where the data fits in memory"),
        (("limited", "limited-tenth"), "dsort", "where the data does not fit"),
    ):
        ratios = [
            row["cp_ratio"]
            for suite in suites
            for row in rows_of(results, suite)
            if row["contender"] == name and row["cp_ratio"] and row["profile"] in PROFILES
        ]
        if not ratios:
            return None
        words.append(f"at {min(ratios):.2g} to {max(ratios):.2g} times the speed of `cp` {place}")
    memory, disk = words
    return f"With the data movement that dsort chooses, a job runs {memory},\nand {disk}."


def _rates(results: Results) -> str | None:
    """MB/s of each contender on each kind of records, with ratios to ``cp``."""
    return _by_profile(
        results,
        lambda row: rate_of(row) + (f" ({row['cp_ratio']:.2f} ×)" if is_compared(row) else ""),
    )


def _costs(results: Results) -> str | None:
    """What each took besides time."""
    return _by_profile(results, _cost)


def _cost(row: Row) -> str:
    read, written = (row[f"{what}_ratio"] for what in ("read", "written"))
    moved = " + ".join("–" if each is None else f"{each:.1f}" for each in (read, written))
    peak = f"{row['peak_bytes'] / 1e6:.0f} MB" if row["peak_bytes"] else "–"
    return f"{row['cpu_per_gib']:.1f} · {moved} · {peak}"


def _tables(results: Results) -> str | None:
    """Rows of Parquet, beside databases."""
    lines = []
    for suite, place in (("tables", "in memory"), ("tables-limited", "in a fifth")):
        lines += [
            [
                f"{name_of(row)}, {row['profile']}, {place}",
                *(
                    (rate_of(row), f"{row['cpu_per_gib']:.1f}")
                    if row["rounds"]
                    else ("failed", "–")
                ),
            ]
            for row in rows_of(results, suite)
        ]
    return framed(("", "MB/s", "CPU s/GiB"), lines, results.get("tables"))


def _small_job(results: Results) -> str | None:
    """Seconds of a job of 10 MB."""
    runs = [run for run in runs_of(results, "small") if run.contender == "dsort"]
    return spread([run.whole_seconds for run in good(runs)], " s") if runs else None


def _planning(results: Results) -> str | None:
    """Seconds and memory of planning alone."""

    def words_of(found: Mapping[str, Any]) -> str:
        seconds, peak_bytes = found["plan_seconds"], found["peak_bytes"]
        return f"{found['rows']:,} records takes {seconds:.1f} s and {peak_bytes / 1e9:.1f} GB"

    return from_report(results, "planning", words_of)


def _small_shards(results: Results) -> str | None:
    """Many small shards, in and out."""

    def words_of(found: Mapping[str, Any]) -> str:
        jobs = found["jobs"]
        ours, cp, many = (jobs.get(name) for name in ("small", "cp", "outputs"))
        words = (
            f"{found['shards']:,} shards of 1 MB are shuffled into as many in "
            f"{ours['seconds']:.2f} s,\nwhere `cp -r` takes {cp['seconds']:.2f} s "
            f"({least_of(ours['rounds'])})"
        )
        if many:
            words += (
                f"; {found['outputs'] / 1e4:.1f} GB become {found['outputs']:,} shards of 100 KB\n"
                f"in {many['seconds']:.1f} s, with {many['cpu_s']:.1f} s of processor time"
            )
        return words

    return from_report(results, "small-shards", words_of)


def _stores(results: Results) -> str | None:
    """From bucket to bucket, by server."""
    lines = []
    for suite, server in SERVERS.items():
        runs = runs_of(results, suite)
        for row in rows_of(results, suite):
            name = row["contender"]
            first = f"{name_of(row)}, {server}"
            if not row["rounds"]:
                lines.append([first, FAILED, *[NONE] * 5])
                continue
            ratios = ratios_of(runs, suite, row["profile"], name, "floor")
            without = cpu_per_gib(runs, name, suite=suite, less_start=True)
            done = [run for run in good(runs) if (run.suite, run.contender) == (suite, name)]
            served = [run.details["server_cpu_seconds"] / run.input_bytes * GIB for run in done]
            lines.append(
                [
                    *(first, rate_of(row), "" if name == "floor" else spread(ratios)),
                    *(f"{row['cpu_per_gib']:.1f}", NONE if without is None else f"{without:.1f}"),
                    *(f"{median(served):.1f}", _moved(row, done)),
                ]
            )
    cpu = ("CPU s/GiB", "without its start", "of the server")
    head = ("", "MB/s", "of the floor", *cpu, "disk + network")
    return framed(head, lines, results.get("s3") or results.get("s3-radosgw"))


def _moved(row: Row, runs: Sequence[Run]) -> str:
    """Bytes of the client's disks, and of the network, over those of the data."""
    disk = [row[f"{what}_ratio"] for what in ("read", "written")]
    network = [
        run.details["network_bytes"] / run.input_bytes
        for run in runs
        if "network_bytes" in run.details
    ]
    return " + ".join(
        (
            NONE if None in disk else f"{sum(disk):.1f}",
            f"{median(network):.1f}" if network else NONE,
        )
    )


def _of_dsort(results: Results, suite: str) -> list[Run]:
    """Runs of dsort between buckets of SeaweedFS: in ``s3``, or on next to nothing."""
    runs = runs_of(results, "s3")
    return [run for run in runs if (run.suite, run.contender) == (suite, "dsort")]


def _store_ratio(results: Results) -> str | None:
    """How fast beside the floor."""
    runs = _of_dsort(results, "s3")
    ratios = ratios_of(runs_of(results, "s3"), "s3", "100k", "dsort", "floor")
    return spread(ratios) if runs else None


def _store_rate(results: Results) -> str | None:
    """MB/s from bucket to bucket."""
    runs = _of_dsort(results, "s3")
    rates = [run.megabytes_per_second for run in good(runs)]
    return spread(rates, " MB/s", digits=0) if runs else None


def _store_start(results: Results) -> str | None:
    """Processor seconds of a command between stores that has next to nothing to do."""
    runs = _of_dsort(results, "s3-start")
    return spread([run.cpu_seconds for run in good(runs)], " s") if runs else None


def _store_worker(results: Results) -> str | None:
    """Memory of a worker between stores."""
    runs = _of_dsort(results, "s3")
    peaks = [max(run.details["worker_own_bytes"]) / 1e6 for run in good(runs)]
    return spread(peaks, " MB", digits=0) if runs else None


def _store_memory(results: Results) -> str | None:
    """Memory of a worker on little data and on much."""
    words = []
    for run in sorted(runs_of(results, "s3-flat"), key=lambda run: run.input_bytes):
        size = f"{run.input_bytes / 1e9:.1f} GB of data"
        if run.failure:
            words.append(f"{FAILED} at {size}")
            continue
        peak_bytes, cpu_s = max(run.details["worker_own_bytes"]), run.cpu_seconds
        cost = f"{cpu_s / run.input_bytes * GIB:.1f} s of processor time a GiB"
        words.append(f"{peak_bytes / 1e6:.0f} MB at {size} ({cost})")
    return " and ".join(words) or None


def _nodes(results: Results) -> str | None:
    """Three nodes beside one with as many CPUs."""
    words = []
    for suite, places in NODES.items():
        if not (runs := runs_of(results, suite)):
            return None
        ratios = ratios_of(runs, suite, runs[0].profile, "nodes-3", "nodes-1")
        words.append(f"{spread(ratios)} {places}")
    return " and ".join(words)


def _exchange(results: Results) -> str | None:
    """What passes between nodes, by each transport."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        rows = [
            [TRANSPORTS[name], f"{each['mb_per_s']:.0f}", f"{each['cpu_s_per_gib']:.2f}"]
            for name, each in found["medians"].items()
            if name in TRANSPORTS
        ]
        how = f"medians, rounds: {max(map(len, found['rounds'].values()))}"
        return framed(("", "MB/s", "CPU s/GiB"), rows, results["exchange"], how)

    return from_report(results, "exchange", words_of)


def _exchange_share(results: Results) -> str | None:
    """Processor time of blocks that go straight, over that of Ray's object store."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        medians = found["medians"]
        if "ray" not in medians:
            return None
        ours, ray = (medians[name]["cpu_s_per_gib"] for name in ("direct", "ray"))
        return f"{ours / ray:.2f}"

    return from_report(results, "exchange", words_of)


def _node_death(results: Results) -> str | None:
    """Time of a job of which a node dies, over that of one undisturbed."""
    return from_report(results, "node-death", lambda found: f"{found['ratio']:.2f}")


def _codecs(results: Results) -> str | None:
    """Processor seconds of a shuffle of compressed shards, and of its parts."""
    found = {(row["profile"], row["contender"]): row for row in rows_of(results, "codecs")}

    def cell(profile: str, contender: str) -> str:
        row = found.get((profile, contender))
        if row is None:
            return NONE
        return f"{row['cpu_seconds']:.1f}" if row["rounds"] else FAILED

    def seconds(profile: str, contender: str) -> float:
        row = found.get((profile, contender))
        return float(row["cpu_seconds"]) if row and row["rounds"] else 0.0

    lines = []
    for profile, name in CODECS.items():
        if not any(key[0] == profile for key in found):
            continue
        parts, whole = [seconds(profile, part) for part in CODEC_PARTS], seconds(profile, "dsort")
        cells = [cell(profile, part) for part in CODEC_PARTS]
        cells += [f"{sum(parts):.1f}" if all(parts) else NONE, f"**{cell(profile, 'dsort')}**"]
        lines.append([name, *cells, f"{whole / sum(parts):.2f}" if all(parts) and whole else NONE])
    if ("tgz", "webdataset") in found:
        theirs = cell("tgz", "webdataset")
        lines.append(["webdataset's own `.tgz` pipeline", *[""] * 4, theirs, ""])
    head = ("", "encode", "decode", "plain shuffle", "parts", "**shuffle**", "× parts")
    return framed(head, lines, results.get("codecs"))


def _ingest(results: Results) -> str | None:
    """Loose files that become shards."""
    lines = []
    for row in rows_of(results, "ingest"):
        name, remark = INGESTERS.get(row["contender"], (row["contender"], ""))
        cells = [f"{row['cpu_seconds']:.1f}", f"{row['whole_seconds']:.1f}"]
        lines.append([name, *(cells if row["rounds"] else [FAILED, NONE]), remark])
    head = ("", "processor seconds", "seconds", "")
    return framed(head, lines, results.get("ingest"))


def _filters(results: Results) -> str | None:
    """What filters and outputs take more than the plain shuffle."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        rows = [
            [FILTERS.get(name, name), f"{each['us_a_record']:.1f}", f"{each['of_plain']:.2f}"]
            for name, each in found["jobs"].items()
            if name != "plain"
        ]
        head = ("", "µs a record more", "of the plain shuffle's speed")
        return framed(head, rows, results["filters"], least_of(found["rounds"]))

    return from_report(results, "filters", words_of)


def _user_code(results: Results) -> str | None:
    """Identities, beside others'."""
    return _commands(results, "identity, {records:,} records", MAPS)


def _resizing(results: Results) -> str | None:
    """JPEGs that become smaller."""
    return _commands(results, "resizing {images:,} JPEGs to 256 pixels", RESIZERS)


def _commands(results: Results, title: str, names: Mapping[str, str]) -> str | None:
    """Commands of ``user-code``."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        rows = [
            [words, f"{found['cpu_s'][name]:.1f}", f"{found['work_s'][name]:.1f}"]
            for name, words in names.items()
            if name in found["cpu_s"]
        ]
        head = (title.format(**found), "processor seconds", "seconds of work")
        how = least_of(found["rounds"])
        return framed(head, rows, results["user-code"], how)

    return from_report(results, "user-code", words_of)


def _loader(results: Results) -> str | None:
    """Samples a second of ``dsort.loader`` and of others, and what one takes."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        rates = found["rates"]
        known = [
            name
            for name in LOADERS
            if any("wall_s" in each.get(name, ()) for each in rates.values())
        ]
        rows = [
            [LOADED[profile], *(_samples(each.get(name, {})) for name in known)]
            for profile, each in rates.items()
        ]
        head = ("", *(LOADERS[name] for name in known))
        return framed(head, rows, results["loader"], least_of(found["rounds"]))

    return from_report(results, "loader", words_of)


def _samples(best: Mapping[str, Any]) -> str:
    if "wall_s" not in best:
        return FAILED
    rate, us = best["samples"] / best["wall_s"], best["cpu_s"] / best["samples"] * 1e6
    return f"{float(f'{rate:.3g}'):,.0f} · {us:.0f}"


def _loader_first(results: Results) -> str | None:
    """Seconds to the first batch."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        words = []
        for whose, said in (("dsort", ""), ("webdataset", "webdataset's ")):
            seconds = [
                best["first_s"]
                for each in found["rates"].values()
                for name, best in each.items()
                if name.startswith(whose) and "first_s" in best
            ]
            if seconds:
                words.append(f"{said}{min(seconds):.2f} to {max(seconds):.2f} s")
        return ", ".join(words) or FAILED

    return from_report(results, "loader", words_of)


def _loader_resume(results: Results) -> str | None:
    """Seconds to go on in the middle of an epoch."""

    def words_of(found: Mapping[str, Any]) -> str | None:
        if (resume := found.get("resume")) is None:
            return None
        orders = resume["orders"].items()
        took = " and ".join(
            f"{each['first_s']:.2f} s in the order `{name}`" for name, each in orders
        )
        what = f"{resume['records']:,} records ({resume['shards']:,} shards, no index kept)"
        return f"{what} took {took}"

    return from_report(results, "loader", words_of)


def _coordinator(results: Results) -> str | None:
    """The coordinator of as many output shards as there are inputs, in a few words."""

    def words_of(found: Mapping[str, Any]) -> str:
        return f"{found['seconds']:.0f} s of one core and {found['peak_bytes'] / 1e9:.2f} GB"

    return from_report(results, "control", words_of)


def _control(results: Results) -> str | None:
    """The coordinator alone."""
    runs = [run for run in results.get("control", {}).get("runs", ()) if not run["failure"]]
    phases = ("resolve", "extract", "plan", "create", "commit")
    rows = [
        [
            run["profile"],
            *(f"{run['details']['phase_seconds'].get(phase, 0.0):.1f}" for phase in phases),
            f"{run['details']['seconds']:.0f}",
            f"{run['details']['peak_bytes'] / 1e9:.2f} GB",
        ]
        for run in runs
    ]
    return framed(("", *phases, "CPU s", "peak"), rows, results.get("control"))


def _plots(results: Results) -> str | None:
    """The pictures that there are."""
    drawn = [suite for suite in SUITES if rows_of(results, suite)]
    lines = [f"![{suite}: MB/s of each contender](performance/{suite}.svg)" for suite in drawn]
    return "\n" + "\n\n".join(lines) + "\n" if lines else None


def _by_profile(results: Results, cell: Callable[[Row], str]) -> str | None:
    """A line for each contender in each place, a column for each kind of records."""
    found = {
        (suite, row["contender"], row["profile"]): row
        for suite in PLACES
        for row in rows_of(results, suite)
    }
    profiles = [each for each in PROFILES if any(key[2] == each for key in found)]
    lines = []
    for suite, contender in dict.fromkeys(key[:2] for key in found):
        cells = [found.get((suite, contender, profile)) for profile in profiles]
        shown = ["" if row is None else cell(row) if row["rounds"] else "failed" for row in cells]
        lines.append([f"{NAMES.get(contender, contender)}, {PLACES[suite]}", *shown])
    head = ("", *(f"{PROFILES[each]} records" for each in profiles))
    return framed(head, lines, results.get("warm") or results.get("limited"))


BLOCKS: Mapping[str, Callable[[Results], str | None]] = {
    "summary": _summary,
    "rates": _rates,
    "costs": _costs,
    "tables": _tables,
    "small-job": _small_job,
    "planning": _planning,
    "small-shards": _small_shards,
    "stores": _stores,
    "store-ratio": _store_ratio,
    "store-rate": _store_rate,
    "store-start": _store_start,
    "store-worker": _store_worker,
    "store-memory": _store_memory,
    "nodes": _nodes,
    "exchange": _exchange,
    "exchange-share": _exchange_share,
    "node-death": _node_death,
    "codecs": _codecs,
    "ingest": _ingest,
    "filters": _filters,
    "user-code": _user_code,
    "resizing": _resizing,
    "loader": _loader,
    "loader-first": _loader_first,
    "loader-resume": _loader_resume,
    "control": _control,
    "coordinator": _coordinator,
    "plots": _plots,
}
