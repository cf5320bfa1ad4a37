"""The manifest and the report of a job, and the plan of a dry run."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from dsort.model.base import Model, example_of, view_of
from dsort.results.report import (
    OutputCount,
    PlanEstimate,
    PlannedShard,
    ReactionCount,
    ReaderCounts,
    RecordFlow,
    Totals,
)

TIMELINE: Final = (
    "Rows of seconds since the attempt began, phase, bytes done in the phase, bytes a second."
)
Sample = tuple[float, str, int, float]
WayName = Literal["map", "range", "spill"]

# All examples are of one nightly shuffle of 19 shards.
EXAMPLE_ID: Final = "20260131-020000-4f2a9c"
EXAMPLE_WARNING: Final = "1 of 20 input shards is missing: samples-07.tar"
EXAMPLE_SPEC: Final[dict[str, Any]] = {
    "input_bck": "s3://data/images",
    "output_bck": "s3://data/shuffled",
    "input_format": {"template": "samples-{00..19}", "objnames": None, "prefix": None},
    "input_extension": ".tar",
    "output_format": "shuffled-%04d",
    "output_extension": ".tar",
    "output_shard_size": 1000000000,
    "algorithm": {"kind": "shuffle", "seed": "42", "decreasing": False},
    "description": "Shuffle the images",
}
EXAMPLE_PHASES: Final[list[dict[str, Any]]] = [
    {
        "phase": name,
        "seconds": seconds,
        "shards": shards,
        "records": records,
        "bytes": size,
        "members": 38000 if name == "extract" else 0,
        "payload_bytes": 1854000000 if name == "extract" else 0,
    }
    for name, seconds, shards, records, size in (
        ("resolve", 0.1, 19, 0, 1912340480),
        ("extract", 4.2, 19, 19000, 1912340480),
        ("plan", 0.3, 0, 19000, 1892884480),
        ("create", 4.6, 2, 19000, 1892884480),
        ("commit", 0.2, 2, 19000, 1912340480),
    )
]
_SECONDS: Final = {each["phase"]: each["seconds"] for each in EXAMPLE_PHASES}
_REASON: Final = "1.8 GiB of inputs fit twice in the 18.8 GiB that the job may use"
_MEMORY_BYTES: Final = 20221208166
_TIMELINE: Final = [
    [0.0, "resolve", 0, 0.0],
    [0.1, "extract", 0, 0.0],
    [2.7, "extract", 1207793664, 464536024.6],
    [4.3, "extract", 1912340480, 440341760.0],
    [4.6, "create", 0, 0.0],
    [9.2, "create", 1892884480, 411496626.1],
    [9.4, "commit", 1912340480, 0.0],
]


class PhaseView(Model):
    """One phase that is over."""

    phase: str = Field(examples=["resolve"])
    seconds: float = Field(default=0.0, examples=[0.1])
    shards: int = Field(default=0, examples=[19])
    records: int = Field(default=0, examples=[0])
    bytes: int = Field(default=0, examples=[1912340480])
    members: int = Field(default=0, description="Of extraction.", examples=[0])
    payload_bytes: int = Field(
        default=0,
        description="Of extraction: of all members, without headers and padding.",
        examples=[0],
    )


@view_of(
    ReactionCount("missing_shards", 1, ("samples-07.tar",)),
    samples="Some of the names concerned.",
)
class ReactionView(Model):
    """One kind of things that the job dropped, kept, renamed or found odd."""


class MixingCellsView(Model):
    """The cells that the test compares: bins, merged until 5 records are expected in each cell."""

    inputs: list[tuple[int, int]] = Field(
        description="The first and the last input shard of each row, from 0."
    )
    outputs: list[tuple[int, int]] = Field(
        description="The first and the last output shard of each column, from 0."
    )
    counts: list[list[int]] = Field(description="Records by row and column.")
    before: list[list[int]] = Field(
        description="The counts if the job had copied all records in input order."
    )


class MixingView(Model):
    """How records were mixed. A bin is a group of neighbouring shards."""

    sent_sometimes = frozenset(("before", "cells"))

    input_shards: int = Field(examples=[19])
    output_shards: int = Field(examples=[2])
    input_bins: int = Field(examples=[19])
    output_bins: int = Field(examples=[2])
    output_bin_shards: int = Field(
        description="Output shards of a bin; the last may have fewer.", examples=[1]
    )
    counts: list[list[int]] = Field(
        description="Records by input bin (rows) and output bin (columns).",
        examples=[[[523 + 7 * (shard % 3 - 1), 477 - 7 * (shard % 3 - 1)] for shard in range(19)]],
    )
    before: list[list[int]] | None = Field(
        default=None, description="The counts if the job had copied all records in input order."
    )
    cells: MixingCellsView | None = Field(
        default=None, description="The cells of the test; null if there are too few records."
    )
    chi2: float = Field(examples=[2.543])
    degrees_of_freedom: int = Field(examples=[18])
    p_value: float = Field(examples=[0.999996])
    verdict: Literal["even", "uneven", "too_few"] = Field(examples=["even"])


class InputShardView(Model):
    """An input shard of a manifest."""

    name: str = Field(examples=["samples-00.tar"])
    bytes: int = Field(examples=[100649499])
    mtime_ns: int = Field(examples=[1769800000000000000])
    etag: str = Field(examples=["9f620878e06d28774406017480a59fd4"])
    records: int = Field(examples=[1000])


@view_of(PlannedShard("shuffled-0000.tar", 9930, 979803095, 1000154112))
class PlannedShardView(Model):
    """An output shard as it would be written."""


class OutputShardView(Model):
    """An output shard of a manifest."""

    sent_sometimes = frozenset(("output",))

    name: str = Field(examples=["shuffled-0000.tar"])
    records: int = Field(examples=[9930])
    members: int = Field(examples=[19860])
    payload_bytes: int = Field(examples=[979803095])
    file_bytes: int = Field(examples=[1000154112])
    xxh3: str = Field(
        description="XXH3 (64 bits) of the file, as `xxhsum -H3` prints it.",
        examples=["bdbcecb34a67657a"],
    )
    output: str | None = Field(
        default=None,
        description="The output of the shard, if a job has several.",
        examples=["train"],
    )


@view_of(OutputCount("train", 2, 18620, 1835959910, 1874093670))
class OutputCountView(Model):
    """The counts of one of several outputs."""


@view_of(
    ReaderCounts("", 2, 9070, 9550, (1, 2)),
    output='Its name; "" if it is the only one.',
    records_min="Of the smallest shard.",
    records_max="Of the largest shard.",
    workers="Numbers of workers (world size times workers of each rank) that divide the shards.",
)
class ReaderCountsView(Model):
    """The numbers of workers that can share the shards of one output equally."""


_SECOND_SHARD: Final = {
    "name": "shuffled-0001.tar",
    "records": 9070,
    "members": 18140,
    "payload_bytes": 893625385,
    "file_bytes": 912186368,
    "xxh3": "c5e6c0359d8a98b3",
}


class SidecarView(Model):
    """A file beside the output shards."""

    kind: str = Field(description="As in `index` of the spec.", examples=["dali"])
    name: str = Field(examples=["shuffled-0000.idx"])
    file_bytes: int = Field(examples=[412730])
    xxh3: str = Field(examples=["5c1f2b06a9e0d377"])


@view_of(Totals(19, 2, 19000, 38000, 1873428480, 1912340480))
class TotalsView(Model):
    """Sums over all shards."""


_MOVE: Final = {
    "way": "map",
    "reason": _REASON,
    "runtime": "local",
    "workers": 4,
    "buckets": 1,
    "memory_bytes": _MEMORY_BYTES,
}


class ManifestView(Model):
    """The result of a job, its inputs, and its settings: the object
    `.dsort/<job_id>/manifest.json`."""

    sent_sometimes = frozenset(("mixing", "timeline", "sidecars"))

    manifest: Literal[1] = Field(description="The version of this format.", examples=[1])
    job_id: str = Field(examples=[EXAMPLE_ID])
    created: str = Field(examples=["2026-01-31T02:00:10+00:00"])
    dsort: dict[str, str] = Field(
        description="Versions of dsort and of Python.",
        examples=[{"dsort": "1.0.0", "python": "3.12.8"}],
    )
    spec: dict[str, Any] = Field(
        description="With every default and the seed.", examples=[EXAMPLE_SPEC]
    )
    totals: TotalsView
    move: dict[str, Any] = Field(description="How payload moved, and why.", examples=[_MOVE])
    phase_seconds: dict[str, float] = Field(examples=[{**_SECONDS, "commit": 0.0}])
    reactions: list[ReactionView]
    index: str | None = Field(description="The name of the wids index, if one was asked for.")
    sidecars: list[SidecarView] = Field(
        default_factory=list, description="Other files beside the output shards."
    )
    mixing: MixingView | None = Field(default=None, examples=[example_of(MixingView)])
    timeline: list[Sample] = Field(default_factory=list, description=TIMELINE, examples=[_TIMELINE])
    inputs: list[InputShardView]
    outputs: list[OutputShardView] = Field(examples=[[example_of(OutputShardView), _SECOND_SHARD]])


@view_of(
    RecordFlow({"": 19100}, {"step 1 filter": 100}),
    read='Records by input; "" if there is only one input.',
    dropped="Dropped records, by the cause.",
    added="Added records, by the cause.",
)
class RecordFlowView(Model):
    """The flow of records through a job: the output has read - dropped + added records."""


class RunReportView(Model):
    """The work of a job. If the job failed or was stopped, its work until its end."""

    sent_sometimes = frozenset(("mixing", "timeline", "algorithm", "outputs", "flow"))

    job_id: str = Field(examples=[EXAMPLE_ID])
    state: Literal["finished", "aborted"] = Field(examples=["finished"])
    output_uri: str = Field(examples=["s3://data/shuffled"])
    manifest_name: str | None = Field(examples=[f".dsort/{EXAMPLE_ID}/manifest.json"])
    move: str = Field(
        description="map, range or spill; empty if the job ended before the choice.",
        examples=["map"],
    )
    workers: int = Field(examples=[4])
    input_shards: int = Field(examples=[19])
    output_shards: int = Field(examples=[2])
    records: int = Field(examples=[19000])
    members: int = Field(examples=[38000])
    payload_bytes: int = Field(examples=[1873428480])
    file_bytes: int = Field(examples=[1912340480])
    seed: str | None = Field(examples=["42"])
    phase_seconds: dict[str, float] = Field(examples=[_SECONDS])
    reactions: list[ReactionView]
    warnings: list[str] = Field(examples=[[EXAMPLE_WARNING]])
    error: str | None
    mixing: MixingView | None = Field(default=None, examples=[example_of(MixingView)])
    timeline: list[Sample] = Field(default_factory=list, description=TIMELINE, examples=[_TIMELINE])
    algorithm: str = Field(default="", description="In words.")
    outputs: list[OutputCountView] = Field(
        default_factory=list, description="The counts of each of several outputs; empty for one."
    )
    flow: RecordFlowView | None = Field(default=None, examples=[example_of(RecordFlowView)])


@view_of(
    PlanEstimate(1912340480, 1912340480, 0, 0, 0, {}),
    disk_read_bytes="From files and scratch, also if the bytes are in the page cache.",
    store_read_bytes="From object stores.",
    exchanged_bytes="Between nodes.",
    requests="To object stores, by kind: get, head, list, put, create, part, complete, delete.",
)
class PlanEstimateView(Model):
    """The bytes that a job would move, and its requests."""


class PlanReportView(Model):
    """The work that a job would do: the report of a dry run."""

    sent_sometimes = frozenset(("mixing", "algorithm", "outputs", "readers", "estimate"))

    job_id: str = Field(examples=["20260131-015500-0b77e1"])
    input_shards: int = Field(examples=[19])
    records: int = Field(examples=[19000])
    members: int = Field(examples=[38000])
    payload_bytes: int = Field(examples=[1873428480])
    file_bytes: int = Field(examples=[1912340480])
    shards: list[PlannedShardView] = Field(
        description="The first shards.",
        examples=[
            [
                example_of(PlannedShardView),
                {name: _SECOND_SHARD[name] for name in PlannedShardView.model_fields},
            ]
        ],
    )
    shards_total: int = Field(examples=[2])
    move: WayName = Field(examples=["map"])
    move_reason: str = Field(examples=[_REASON])
    workers: int = Field(examples=[4])
    memory_bytes: int = Field(examples=[_MEMORY_BYTES])
    scratch_bytes: int = Field(examples=[0])
    seed: str | None = Field(examples=["42"])
    reactions: list[ReactionView]
    warnings: list[str] = Field(examples=[[EXAMPLE_WARNING]])
    mixing: MixingView | None = Field(default=None, examples=[example_of(MixingView)])
    algorithm: str = Field(default="", description="In words.")
    outputs: list[OutputCountView] = Field(
        default_factory=list, description="The counts of each of several outputs; empty for one."
    )
    readers: list[ReaderCountsView] = Field(
        default_factory=list, description="How many workers can read each output."
    )
    estimate: PlanEstimateView | None = Field(default=None, examples=[example_of(PlanEstimateView)])
