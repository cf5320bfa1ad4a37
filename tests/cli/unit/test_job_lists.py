"""The list of a service's jobs fits 80 columns, whatever its jobs are called."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dsort.cli import job_list
from dsort.client.values import Job

NOW = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)


def job(number: int = 0, age_s: float = 1800, **given: Any) -> Job:
    return Job.of(
        {
            "job_id": f"20260131-02000{number}-4f2a9c",
            "kind": "run",
            "state": "finished",
            "owner": "alice",
            "input_uri": "file:///data/images",
            "output_uri": "s3://shuffled",
            "created_at": (NOW - timedelta(seconds=age_s)).isoformat(),
            **given,
        }
    )


def narrow(*jobs: Job, columns: int = 80) -> list[str]:
    rows = [job_list._narrow_row(each, NOW) for each in jobs]
    return job_list._narrow_table(rows, columns).splitlines()


def test_a_value_that_no_job_has_gets_no_column() -> None:
    assert narrow(job()) == [
        "JOB                     STATE        AGE  FROM          TO",
        "20260131-020000-4f2a9c  finished  30 min  /data/images  s3://shuffled",
    ]
    labelled = narrow(job(), job(1, labels=["nightly", "a"], description="Shuffle"), columns=100)
    assert labelled[0].split()[-2:] == ["LABELS", "WHAT"]
    assert labelled[2].endswith("nightly, a  Shuffle")


def test_long_texts_are_cut_where_they_say_least() -> None:
    long = job(
        state="running",
        progress={"phase": "create", "share": 0.694},
        labels=["nightly", "team-of-the-images"],
        input_uri="file:///srv/data/of/the/team/images\ns3://another-bucket/with/a/prefix",
        output_uri="s3://team-bucket/shuffled/2026-01-31/train",
        description="Shuffle the images of all days for the training of the next night",
    )
    header, row = narrow(job(1), long)[::2]

    assert len(row) <= 80
    assert "running 69%  30 min" in row
    assert row[header.index("FROM") :].startswith("…")
    assert "/train" in row
    assert row.endswith("…")
    assert "Shuf" in row[header.index("WHAT") :]
    assert len(narrow(job(1), long, columns=120)[2]) <= 120


def test_a_directory_that_all_places_are_in_is_not_repeated() -> None:
    inside = {"input_uri": "file:///srv/data/images", "output_uri": "file:///srv/data/a/out"}
    assert narrow(job(**inside))[1].split()[-2:] == ["…/images", "…/a/out"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"state": "queued", "queue_position": 3}, "queued #3"),
        ({"state": "running", "stopping": True}, "stopping"),
        ({"kind": "plan", "description": "Look"}, "plan: Look"),
        ({"age_s": 3}, " 3 s "),
        ({"age_s": 7200}, " 2 h "),
        ({"age_s": 40 * 3600}, " 2 d "),
        ({"description": "a\x1b[2Jb"}, "a\\x1b[2Jb"),
    ],
)
def test_a_row_says_in_few_words_how_a_job_is(given: dict[str, Any], words: str) -> None:
    assert words in narrow(job(**given))[1]


def test_the_wide_list_has_schedule_duration_and_records() -> None:
    phases = [
        {"phase": "extract", "seconds": 3.0, "records": 120},
        {"phase": "create", "seconds": 5.0, "records": 100},
        {"phase": "commit", "seconds": 1.0},
    ]
    times = {"started_at": "2026-01-31T02:00:00Z", "ended_at": "2026-01-31T02:01:30Z"}
    row = job_list._wide_row(job(schedule="nightly", phases=phases, **times), NOW)
    found = dict(zip(job_list.WIDE, row, strict=True))
    assert (found["SCHEDULE"], found["TOOK"], found["RECORDS"]) == ("nightly", "1 min 30 s", "100")
