"""Jobs in AIStore's words: every field has the type and the meaning that its own Python SDK gives
it, in every state that a job can be in. And key maps that the SDK puts beside the inputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aistore.sdk.dsort.types import JobInfo
from msgspec.structs import replace

from dsort.errors import SpecError
from dsort.service.aistore.answers import ZERO_TIME, bucket_model, job_info, kinds_to_name
from dsort.service.aistore.key_maps import HeldKeyMaps, with_key_map
from dsort.service.database.tables import JobRow
from tests.support.fake_clock import FakeClock
from tests.support.internals import OVERHEAD_TEXT, WARNING_TEXTS
from tests.support.job_rows import job_row

ROOT = Path("/data")
NO_TIMES = {
    "total_ms": "0",
    "count": "0",
    "min_ms": "9223372036854775807",
    "max_ms": "0",
    "avg_ms": "0",
}
QUEUED = job_row(
    "20261120-170000-4f2a9c",
    number=1,
    description="nightly",
    input_uri="file:///data/in",
    output_uri="s3://shards/night",
    created_at=990.0,
)
RUNNING = replace(QUEUED, state="running", started_at=1000.5, attempt=1)
DONE = {
    "resolve": {"phase": "resolve", "seconds": 0.5, "shards": 4, "records": 0, "bytes": 4000},
    "extract": {
        "phase": "extract",
        "seconds": 2.0,
        "shards": 4,
        "records": 40,
        "bytes": 4000,
        "members": 80,
        "payload_bytes": 3600,
    },
    "plan": {"phase": "plan", "seconds": 0.25, "shards": 0, "records": 40, "bytes": 0},
    "create": {"phase": "create", "seconds": 3.0, "shards": 6, "records": 40, "bytes": 4100},
    "commit": {"phase": "commit", "seconds": 0.25, "shards": 6, "records": 0, "bytes": 4100},
}


def in_phase(phase: str, **counts: Any) -> JobRow:
    """A job that is in ``phase``, with all phases before it done."""
    progress = {
        "phase": phase,
        "shards_done": 0,
        "shards_total": 0,
        "records_done": 0,
        "bytes_done": 0,
        "bytes_total": 0,
        "elapsed_s": 1.5,
        **counts,
    }
    before = list(DONE)[: list(DONE).index(phase)]
    return replace(RUNNING, phase=phase, progress=progress, phases=[DONE[each] for each in before])


def finished(**result: Any) -> JobRow:
    """A job that has finished, as its result says."""
    shown = {"input_shards": 4, "output_shards": 6, "records": 40, "move": "map", "warnings": []}
    return replace(
        in_phase("commit", shards_done=6, shards_total=6),
        state="finished",
        phases=list(DONE.values()),
        ended_at=1007.0,
        exit_code=0,
        result={**shown, **result},
    )


def shown(row: JobRow, **named: Any) -> tuple[dict[str, Any], JobInfo]:
    """What a client gets, and what the SDK makes of it."""
    text = json.dumps(job_info(row, ROOT, **named))
    return json.loads(text), JobInfo.model_validate_json(text)


def test_buckets_have_the_names_that_a_spec_would_give_them() -> None:
    raw, info = shown(QUEUED)
    nobody = {"uuid": "", "name": ""}
    assert raw["src-bck"] == {"name": "in", "provider": "ais", "namespace": nobody}
    assert raw["dst-bck"] == {"name": "shards/night", "provider": "aws", "namespace": nobody}
    assert info.src_bck.name == "in"


def test_every_kind_of_bucket_has_its_name_and_provider() -> None:
    for uri, name, provider in (
        ("file:///data/a/b", "a/b", "ais"),
        ("file:///database", "/database", "file"),
        ("file:///else/50%25", "/else/50%", "file"),
        ("gs://bucket", "bucket", "gcp"),
        ("az://container/p", "container/p", "azure"),
        ("ais://bucket", "bucket", "ais"),
        ("https://host:8080/p", "https://host:8080/p", "ht"),
    ):
        model = bucket_model(uri, ROOT)
        assert (model["name"], model["provider"]) == (name, provider), uri


def test_extraction_runs_and_counts() -> None:
    raw, _ = shown(
        in_phase(
            "extract",
            shards_done=3,
            shards_total=4,
            records_done=30,
            bytes_done=3000,
            members_done=60,
            payload_bytes_done=2700,
        )
    )
    view = raw["Metrics"]["local_extraction"]
    assert view == {
        "started_time": "1970-01-01T00:16:40.500000Z",
        "end_time": ZERO_TIME,
        "elapsed": 2_000_000_000,  # half a second to resolve is a part of it
        "running": True,
        "finished": False,
        "total_count": "4",
        "extracted_count": "3",
        "extracted_size": "2700",  # payload: of shards it is their uncompressed content
        "extracted_record_count": "60",  # members, by whatever name
        "extracted_to_disk_count": "0",
        "extracted_to_disk_size": "0",
    }
    assert (raw["loc-objs"], raw["loc-bytes"]) == ("3", "2700")
    assert raw["Metrics"]["meta_sorting"]["running"] is False


def test_creation_is_not_finished_before_the_commit() -> None:
    raw, info = shown(in_phase("commit", shards_done=6, shards_total=6))
    view = raw["Metrics"]["shard_creation"]
    assert (view["running"], view["finished"]) == (True, False)
    assert (view["to_create"], view["created_count"], view["moved_shard_count"]) == ("6", "6", "0")
    assert view["started_time"] == "1970-01-01T00:16:43.250000Z"
    assert view["elapsed"] == 4_500_000_000
    assert raw["Metrics"]["meta_sorting"]["finished"] is True
    assert raw["Metrics"]["meta_sorting"]["sent_stats"] == NO_TIMES
    assert info.metrics.shard_creation.finished is False


def test_what_a_job_spilled_is_counted_as_extracted_to_disk() -> None:
    view = shown(finished(move="spill"))[0]["Metrics"]["local_extraction"]
    assert (view["total_count"], view["extracted_count"]) == ("4", "4")
    assert (view["extracted_record_count"], view["extracted_size"]) == ("80", "3600")
    assert (view["extracted_to_disk_count"], view["extracted_to_disk_size"]) == ("4", "3600")


def test_a_job_that_went_on_from_its_commit_has_finished_its_earlier_phases() -> None:
    """A later attempt does not enter phases that are done."""
    row = replace(finished(), phases=[DONE["resolve"], DONE["commit"]])
    metrics = shown(row)[0]["Metrics"]
    assert all(metrics[each]["finished"] for each in ("local_extraction", "meta_sorting"))
    assert metrics["shard_creation"]["created_count"] == "6"


def test_a_dry_run_is_finished_and_has_created_nothing() -> None:
    planned = {"input_shards": 4, "records": 40, "shards": [{}], "shards_total": 3, "move": "map"}
    row = replace(
        finished(),
        kind="plan",
        result=planned,
        phases=[DONE["resolve"], DONE["extract"], DONE["plan"]],
        progress=None,
    )
    view = shown(row)[0]["Metrics"]["shard_creation"]
    assert (view["finished"], view["to_create"], view["created_count"]) == (True, "3", "0")


@pytest.mark.parametrize("phase", ["extract", "create"])
def test_a_failed_job_is_aborted_where_it_was(phase: str) -> None:
    row = replace(
        in_phase(phase, shards_done=1, shards_total=6),
        state="failed",
        ended_at=1003.0,
        error={"detail": "shard in-2.tar is corrupt", "hint": "mend it"},
        exit_code=3,
    )
    raw, info = shown(row)
    view = raw["Metrics"]["local_extraction" if phase == "extract" else "shard_creation"]
    assert (view["running"], view["finished"]) == (False, False)
    assert view["end_time"] == raw["finish_time"] == "1970-01-01T00:16:43Z"
    assert (info.aborted, info.archived, info.metrics.aborted) == (True, True, True)
    assert info.metrics.errors == ["shard in-2.tar is corrupt (hint: mend it)"]
    assert raw["Metrics"]["shard_creation"]["finished"] is False


@pytest.mark.parametrize(
    ("kind", "one"),
    [
        ("missing_shards", '"{}" does not exist'),
        ("duplicated_records", 'record "{}" is duplicated'),
    ],
)
@pytest.mark.parametrize(("count", "shown_max"), [(100, 100), (1, 1), (10**7, 1000)])
def test_missing_and_duplicated_items_have_a_warning_each(
    kind: str, one: str, count: int, shown_max: int
) -> None:
    names = [f"in-{n}.tar" for n in range(min(count, 10))]
    agreed = re.sub(r"\[([^|\]]*)\|([^\]]*)\]", r"\1" if count == 1 else r"\2", WARNING_TEXTS[kind])
    text = agreed.format(count=f"{count:,}", names=", ".join(names[:3]))
    counted = [{"kind": kind, "count": count, "samples": names}]
    raw, _ = shown(finished(warnings=["odd", text], reactions=counted))
    odd, *rest = raw["Metrics"]["warnings"]
    assert (odd, len(rest)) == ("odd", shown_max)
    assert rest[: len(names)] == [one.format(name) for name in names]


def test_warnings_give_all_names_where_they_are_known() -> None:
    names = [f"in-{n}.tar" for n in range(50)]
    text = WARNING_TEXTS["missing_shards"].format(count="50", names="in-0.tar")
    text = re.sub(r"\[([^|\]]*)\|([^\]]*)\]", r"\2", text)
    counted = [{"kind": "missing_shards", "count": 50, "samples": names[:10]}]
    row = finished(warnings=[text], reactions=counted)
    assert kinds_to_name(row.result or {}) == {"missing_shards": 50}
    raw, _ = shown(row, named={"missing_shards": names})
    assert raw["Metrics"]["warnings"] == [f'"{name}" does not exist' for name in names]
    counted[0] |= {"count": 10}
    assert kinds_to_name({"reactions": counted}) == {}


def test_the_warning_of_headers_and_padding_is_not_among_those_that_are_counted() -> None:
    text = OVERHEAD_TEXT.format(stored="60 KiB", payload="90 B")
    assert shown(finished(warnings=[text, "odd"]))[1].metrics.warnings == ["odd"]
    assert shown(RUNNING, warnings=[text])[1].metrics.warnings == []


HERE = "dsort.example:8080"
URL = f"http://{HERE}/v1/objects/in/ekm-file.json?provider=ais"
MAP = b'{"low-%d.tar": ["^0"], "high-%d.tar": ["^1"]}'


def spec(url: str = URL) -> dict[str, object]:
    """What the SDK sends for a key map."""
    return {"input_bck": {"name": "in"}, "output_format": "", "ekm_file": url, "ekm_file_sep": ""}


@pytest.mark.parametrize(
    "url",
    [
        "http://other.example/v1/objects/in/ekm-file.json",
        f"http://{HERE}/v1/objects/in/other.json",
        f"http://{HERE}/v1/sort",
        "/v1/objects/in/ekm-file.json",
    ],
)
def test_other_places_stay_as_they_are(url: str) -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", MAP)
    assert with_key_map(spec(url), held, owner="ann", address=HERE) == spec(url)


@pytest.mark.parametrize("data", [b"key\tshard-%d", b"\xff", b'{"a": [], "a": []}', b"[" * 99_999])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    held = HeldKeyMaps()
    held.put("ann", "in", data)
    with pytest.raises(SpecError):
        with_key_map(spec(), held, owner="ann", address=HERE)


def test_key_maps_are_held_for_ten_minutes() -> None:
    clock = FakeClock()
    held = HeldKeyMaps(clock.now)
    held.put("ann", "in", MAP)
    clock.seconds += 600
    assert held.get("ann", "in") == MAP
    clock.seconds += 1
    assert held.get("ann", "in") is None


def test_the_oldest_key_maps_go_where_they_are_too_many_or_too_large() -> None:
    held = HeldKeyMaps()
    for number in range(65):
        held.put("ann", f"in-{number}", MAP)
    assert held.get("ann", "in-0") is None
    assert held.get("ann", "in-1") == MAP
    held.put("ann", "large", b"x" * (16 << 20))
    assert [held.get("ann", f"in-{number}") for number in range(65)] == [None] * 65
    assert held.get("ann", "large") is not None
