"""What a notebook shows of what its user holds is a line, whatever there is in it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsort.client import DsortClient, Job, Schedule, Validation
from dsort.spec.load import parse_spec
from tests.support.internals import (
    Forecast,
    JobReport,
    Mixing,
    Order,
    PlannedShard,
    Run,
    ShardRecord,
    Totals,
    VerifyProblem,
    VerifyReport,
)

SPEC = {
    "input_bck": "images",
    "output_bck": "out",
    "output_format": "s-%d",
    "output_shard_count": 3,
}
MIXING = Mixing(9, 9, 9, 9, 1, ((1,) * 9,) * 9, 1.0, 64, 0.4, "even")
REPORT = JobReport(
    job_id="20260131-020000-4f2a9c",
    state="finished",
    output_uri="s3://data/out",
    totals=Totals(9, 1200, 1, 2, 1, 3 << 20),
    run=Run("map", 2, {"create": 1.0}),
    order=Order("7", mixing=MIXING),
    warnings=("w" * 100,) * 100,
)
PLAN = JobReport(
    job_id="j",
    state="planned",
    output_uri="",
    totals=Totals(1, 2, 40, 40, 1, 2048),
    run=Run("spill", 1),
    order=Order(None),
    plan=Forecast((PlannedShard("s-0.tar", 40, 1, 2048),) * 2, "", 1, 1),
)
VERIFIED = VerifyReport("j", "s3://data/out", 1, 1, 40, 40, 1, 1.0, 0, (), ())
PROBLEM = VerifyProblem("order", "s-0.tar", "a", "text")
ID = "20260131-020000-4f2a9c"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (REPORT, f"<JobReport {ID} finished: 9 → 1,200 shards, 1 record, 3 MiB in s3://data/out>"),
        (PLAN, "<JobReport j planned: 1 → 2 shards, 40 records, 2 KiB, by spill>"),
        (VERIFIED, "<VerifyReport j ok: 40 records in s3://data/out>"),
        (
            replace(VERIFIED, problem_count=2, problems=(PROBLEM,)),
            "<VerifyReport j 2 differences: 40 records in s3://data/out>",
        ),
        (MIXING, "<Mixing even: 9 x 9 bins>"),
        (
            ShardRecord("a", {f"a.{each}": bytes(2048) for each in range(4)}, "s-0.tar"),
            "<ShardRecord 'a' of s-0.tar: a.0 2 KiB, a.1 2 KiB, a.2 2 KiB, …>",
        ),
        (
            Job.of({"job_id": ID, "kind": "run", "state": "failed", "phase": "extract"}),
            f"Job('{ID}', state='failed')",
        ),
        (
            Schedule.of({"name": "nightly", "cron": "0 2 * * *", "spec": SPEC}),
            "Schedule('nightly', cron='0 2 * * *', timezone='UTC')",
        ),
        (Validation.of({"spec": SPEC}), "Validation(True)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_repr_is_one_line_with_the_main_facts(value: object, words: str) -> None:
    assert repr(value) == words


def test_a_spec_shows_what_was_said_in_it() -> None:
    spec = parse_spec({**SPEC, "algorithm": {"kind": "shuffle", "seed": 7}}).spec
    shown = repr(spec)
    for words in ("output_format='s-%d'", "output_shard_count=3", "seed='7'"):
        assert words in shown
    assert "overwrite" not in shown
    assert len(shown) < 600


def test_a_client_shows_its_service() -> None:
    with DsortClient("http://127.0.0.1:1") as client:
        assert repr(client) == "<DsortClient http://127.0.0.1:1>"
