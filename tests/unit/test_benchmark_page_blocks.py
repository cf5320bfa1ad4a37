"""Each block of a page says what its result says, and fails no page where runs failed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.page_blocks import BLOCKS
from benchmarks.results import GIB, Run, to_json

MACHINE = {"cpu": "A cpu", "memory": "24 GiB", "kernel": "Linux", "file system": "ext4"}


def result_of(*runs: Run) -> dict[str, Any]:
    return to_json(MACHINE, {}, list(runs), [], [])


def alone(suite: str, details: dict[str, Any]) -> dict[str, Any]:
    """A result of one suite that measured by itself."""
    return {suite: result_of(Run(suite, "all", "dsort", 0, 0, 0.0, 1.0, details=details))}


def store_run(suite: str, contender: str, number: int, seconds: float, cpu_s: float) -> Run:
    input_bytes = GIB // 100 if suite.endswith("-start") else GIB
    details = {
        "server_cpu_seconds": 9.0,
        "worker_own_bytes": [6_000_000, 150_000_000],
        "network_bytes": 4 * input_bytes,
        **({} if contender == "floor" else {"read_bytes": 0, "written_bytes": GIB // 2}),
    }
    return Run(
        *(suite, "100k", contender, number, input_bytes, seconds, seconds, 0.0),
        cpu_seconds=cpu_s,
        details=details,
    )


def stores(suite: str) -> dict[str, Any]:
    runs = [store_run(f"{suite}-start", each, 0, 1.0, 1.01) for each in ("floor", "dsort")]
    for number, ours_s in enumerate((10.0, 8.0, 16.0)):
        runs.append(store_run(suite, "floor", number, 8.0, 3.0))
        runs.append(store_run(suite, "dsort", number, ours_s, 4.0))
    return {suite: result_of(*runs)}


def lines_of(block: str, results: dict[str, Any]) -> list[str]:
    text = BLOCKS[block](results)
    assert text is not None
    return text.strip().splitlines()


def test_a_job_of_10_mb_is_its_median_and_its_range() -> None:
    runs = [Run("small", "100k", "dsort", n, 10**7, 0.1, s) for n, s in enumerate((0.6, 0.4, 0.5))]
    assert BLOCKS["small-job"]({"small": result_of(*runs)}) == "0.50 s (rounds: 0.40 to 0.60)"
    cp = Run("small", "100k", "cp", 0, 10**7, 0.1, 0.2)
    assert BLOCKS["small-job"]({"small": result_of(cp)}) is None


def test_planning_and_the_coordinator() -> None:
    found = alone("planning", {"rows": 10**7, "plan_seconds": 5.04, "peak_bytes": 10**9})
    assert BLOCKS["planning"](found) == "10,000,000 records takes 5.0 s and 1.0 GB"
    found = alone("control", {"seconds": 14.4, "peak_bytes": 632_000_000})
    assert BLOCKS["coordinator"](found) == "14 s of one core and 0.63 GB"


def test_small_shards_with_and_without_many_outputs() -> None:
    jobs = {
        "cp": {"seconds": 1.3, "cpu_s": 1.0, "rounds": 3},
        "small": {"seconds": 1.7, "cpu_s": 2.0, "rounds": 3},
        "outputs": {"seconds": 42.0, "cpu_s": 70.0, "rounds": 1},
    }
    details = {"shards": 1000, "outputs": 100_000, "jobs": jobs}
    text = " ".join(lines_of("small-shards", alone("small-shards", details)))
    assert "1,000 shards of 1 MB are shuffled into as many in 1.70 s" in text
    assert "takes 1.30 s (the best of 3 rounds); 10.0 GB become 100,000 shards" in text
    assert "in 42.0 s, with 70.0 s of processor time" in text
    del jobs["outputs"]
    text = " ".join(lines_of("small-shards", alone("small-shards", details)))
    assert text.endswith("(the best of 3 rounds)")


def test_stores_have_ratios_by_round_and_costs_of_client_and_server() -> None:
    head, _, floor, ours, *others, _, said = lines_of("stores", stores("s3") | stores("s3-radosgw"))
    assert head.startswith("|  | MB/s | of the floor | CPU s/GiB |")
    name = "fetch and store every shard, no more, SeaweedFS"
    assert floor == f"| {name} | 134 |  | 3.0 | 2.0 | 9.0 | – + 4.0 |"
    ratio = "0.80 (rounds: 0.50 to 1.00)"
    name = "**dsort**, choosing by itself, SeaweedFS"
    assert ours == f"| {name} | 107 | {ratio} | 4.0 | 3.0 | 9.0 | 0.5 + 4.0 |"
    assert [line.split("|")[1].strip()[-7:] for line in others] == ["radosgw", "radosgw"]
    assert "medians, rounds: 3;" in said
    assert BLOCKS["store-ratio"](stores("s3")) == ratio
    assert BLOCKS["store-rate"](stores("s3")) == "107 MB/s (rounds: 67 to 134)"
    assert BLOCKS["store-start"](stores("s3")) == "1.01 s"
    assert BLOCKS["store-worker"](stores("s3")) == "150 MB (rounds: 150 to 150)"


def test_memory_between_stores_is_given_by_size() -> None:
    runs = [
        Run(
            *("s3-flat", "100k", "dsort", 0, size, 9.0, 9.0),
            cpu_seconds=size / GIB * 2.5,
            details={"scale": size, "worker_own_bytes": [7, own]},
        )
        for size, own in ((8 * GIB, 230_000_000), (GIB, 226_000_000))
    ]
    text = BLOCKS["store-memory"]({"s3-flat": result_of(*runs)})
    cost = "of data (2.5 s of processor time a GiB)"
    assert text == f"226 MB at 1.1 GB {cost} and 230 MB at 8.6 GB {cost}"
    lost = Run("s3-flat", "100k", "dsort", 0, GIB, failure="no")
    assert BLOCKS["store-memory"]({"s3-flat": result_of(lost)}) == "failed at 1.1 GB of data"


def test_nodes_are_shown_when_both_were_measured() -> None:
    def nodes(suite: str, *seconds: float) -> dict[str, Any]:
        runs = [Run(suite, "100k", "nodes-1", n, GIB, 8.0) for n in range(len(seconds))]
        runs += [Run(suite, "100k", "nodes-3", n, GIB, each) for n, each in enumerate(seconds)]
        return {suite: result_of(*runs)}

    text = BLOCKS["nodes"](nodes("nodes", 10.0) | nodes("nodes-files", 10.0, 16.0))
    one = "0.80 from bucket to bucket"
    assert text == f"0.65 (rounds: 0.50 to 0.80) from file to file and {one}"
    assert BLOCKS["nodes"](nodes("nodes", 10.0)) is None
    failed = {"nodes-files": result_of(Run("nodes-files", "", "nodes-1", 0, 1, failure="no"))}
    text = BLOCKS["nodes"](failed | nodes("nodes", 10.0))
    assert text == f"failed from file to file and {one}"


def test_transports_between_nodes() -> None:
    def figures(rate: float, cpu_s: float) -> dict[str, float]:
        return {"mb_per_s": rate, "cpu_s_per_gib": cpu_s}

    medians = {
        "socket": figures(1670, 0.5),
        "direct": figures(1500, 0.75),
        "ray": figures(190, 3.0),
    }
    details = {"medians": medians, "rounds": {"socket": [{}] * 3}}
    lines = lines_of("exchange", alone("exchange", details))
    assert "| **straight from agent to worker** | 1500 | 0.75 |" in lines
    assert "medians, rounds: 3;" in lines[-1]
    assert BLOCKS["exchange-share"](alone("exchange", details)) == "0.25"
    del medians["ray"]
    assert BLOCKS["exchange-share"](alone("exchange", details)) is None
    assert BLOCKS["node-death"](alone("node-death", {"ratio": 1.3149})) == "1.31"


def codec_run(profile: str, contender: str, cpu_s: float, failure: str = "") -> Run:
    return Run(*("codecs", profile, contender, 0, GIB, 9.0), cpu_seconds=cpu_s, failure=failure)


def test_codecs_are_shown_with_their_parts() -> None:
    parts = {"dsort": 9.9, "encode": 4.2, "decode": 3.0, "move": 4.8, "webdataset": 41.2}
    runs = [codec_run("tgz", name, cpu_s) for name, cpu_s in parts.items()]
    runs += [codec_run("tar.zst", "dsort", 8.6), codec_run("tar.zst", "encode", 1, failure="no")]
    _, _, *rows, _, _ = lines_of("codecs", {"codecs": result_of(*runs)})
    assert rows == [
        "| `.tgz` | 4.2 | 3.0 | 4.8 | 12.0 | **9.9** | 0.83 |",
        "| `.tar.zst` | failed | – | – | – | **8.6** | – |",
        "| webdataset's own `.tgz` pipeline |  |  |  |  | 41.2 |  |",
    ]


def test_loose_files() -> None:
    runs = [
        Run("ingest", "3k-files", "dsort", 0, 10**8, 3.0, 4.0, cpu_seconds=4.9),
        Run("ingest", "3k-files", "webdataset", 0, 10**8, failure="no"),
    ]
    _, _, ours, theirs, *_ = lines_of("ingest", {"ingest": result_of(*runs)})
    assert ours == "| **`dsort ingest`** | 4.9 | 4.0 | shuffled by a defined permutation |"
    assert theirs.endswith("names shuffled before | failed | – | one process |")


def test_filters_are_named_as_in_a_spec() -> None:
    jobs = {
        "plain": {"cpu_s": 2.0, "us_a_record": 0.0, "of_plain": 1.0},
        "filter over classes": {"cpu_s": 2.2, "us_a_record": 2.31, "of_plain": 0.868},
        "a new one": {"cpu_s": 2.2, "us_a_record": 2.0, "of_plain": 0.9},
    }
    details = {"records": 10, "move": "map", "rounds": 3, "jobs": jobs}
    _, _, first, second, _, said = lines_of("filters", alone("filters", details))
    assert first == """| `filter: 'ext("cls") >= 0'` | 2.3 | 0.87 |"""
    assert second == "| a new one | 2.0 | 0.90 |"
    assert "; the best of 3 rounds; " in said


def test_users_code_without_those_that_are_not_installed() -> None:
    seconds = {"plain": 2.7, "map": 3.2, "ray_data": 45.0, "resize": 10.3, "pillow": 9.4}
    details = {"records": 80_000, "images": 4000, "rounds": 2, "cpu_s": seconds, "work_s": seconds}
    head, _, *rows, _, _ = lines_of("user-code", alone("user-code", details))
    assert head == "| identity, 80,000 records | processor seconds | seconds of work |"
    assert rows == [
        "| dsort, shuffle alone | 2.7 | 2.7 |",
        "| **dsort, shuffle and `map`** | 3.2 | 3.2 |",
        "| Ray Data `map_batches`, without a shuffle | 45.0 | 45.0 |",
    ]
    head, _, pillow, *_ = lines_of("resizing", alone("user-code", details))
    assert head.startswith("| resizing 4,000 JPEGs")
    assert pillow == "| a bare loop over Pillow, which writes nothing | 9.4 | 9.4 |"


def test_the_loader_beside_those_that_ran() -> None:
    ours = {"samples": 1000, "wall_s": 0.01, "cpu_s": 0.006, "first_s": 0.02}
    theirs = {"samples": 1000, "wall_s": 0.1, "cpu_s": 0.09, "first_s": 0.01}
    rates = {
        "3k": {"dsort": ours, "webdataset": theirs, "webdataset, 2 workers": {"not_run": "no"}},
        "jpeg": {"dsort": {"not_run": "no"}, "webdataset": theirs | {"first_s": 0.09}},
    }
    orders = {"shards": {"first_s": 0.07}, "window(8)": {"first_s": 0.18}}
    resume = {"records": 10**7, "shards": 1000, "orders": orders}
    found = alone("loader", {"rounds": 3, "rates": rates, "resume": resume})
    head, _, *rows, _, _ = lines_of("loader", found)
    assert head == "|  | dsort, reading forward | webdataset |"
    assert rows == [
        "| 3 KB, no decoding | 100,000 · 6 | 10,000 · 90 |",
        "| JPEG, 256 × 256, `rgb8` | failed | 10,000 · 90 |",
    ]
    assert BLOCKS["loader-first"](found) == "0.02 to 0.02 s, webdataset's 0.01 to 0.09 s"
    assert BLOCKS["loader-resume"](found) == (
        "10,000,000 records (1,000 shards, no index kept) took 0.07 s in the order `shards` "
        "and 0.18 s in the order `window(8)`"
    )


SUITE_OF = {
    "planning": "planning",
    "small-job": "small",
    "small-shards": "small-shards",
    "store-ratio": "s3",
    "store-rate": "s3",
    "store-worker": "s3",
    "exchange": "exchange",
    "exchange-share": "exchange",
    "node-death": "node-death",
    "filters": "filters",
    "user-code": "user-code",
    "resizing": "user-code",
    "loader": "loader",
    "loader-first": "loader",
    "loader-resume": "loader",
    "coordinator": "control",
}


@pytest.mark.parametrize("name", SUITE_OF)
def test_what_failed_is_said(name: str) -> None:
    suite = SUITE_OF[name]
    failed = {suite: result_of(Run(suite, "100k", "dsort", 0, 1, failure="no"))}
    assert BLOCKS[name](failed) == "failed"


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("contender", ["dsort", "webdataset", "nodes-1", "a new one"])
def test_no_block_fails_where_all_runs_did(name: str, contender: str) -> None:
    suites = {*SUITE_OF.values(), "codecs", "ingest", "nodes", "nodes-files", "warm", "limited"}
    for suite in ({*()}, {"s3", "s3-flat", "s3-radosgw"}, suites):
        failed = {
            each: result_of(Run(each, "100k", contender, 0, 1, failure="no")) for each in suite
        }
        text = BLOCKS[name](failed)
        assert text is None or "failed" in text or text.startswith("\n![")
