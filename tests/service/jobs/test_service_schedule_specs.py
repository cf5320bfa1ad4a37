"""Every file in ``specs/schedules/`` is a schedule that runs, night after night: what its jobs make
is right, the pointer goes along, and only what it keeps is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsort import api
from dsort.options import RunOptions
from dsort.service.database.engine import open_database
from dsort.service.schedules.create import parse_definition
from dsort.service.schedules.retention import run_after_commit
from dsort.service.security.tokens import ANYONE
from dsort.spec.load import parse_spec
from dsort.spec.yaml_text import parse_yaml
from dsort.storage.open import open_bucket
from tests.support.commands import ROOT
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.fake_clock import FakeClock
from tests.support.schedules import Nights, at

SCHEDULES = sorted((ROOT / "specs" / "schedules").iterdir())
KEPT = 2


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.name)
def test_an_example_schedule_makes_a_fresh_order_each_night_and_keeps_the_newest(
    tmp_path: Path, path: Path
) -> None:
    loaded = parse_definition(parse_yaml(path.read_text(encoding="utf-8"), path.name))
    assert loaded.warnings == ()
    made = loaded.definition.model_copy(update={"retain": KEPT})
    samples = {
        f"samples-{shard:03d}.tar": Shard(
            tuple(Member(f"{shard}{number}.txt", b"%d" % number) for number in range(10))
        )
        for shard in range(8)
    }
    write_shards(tmp_path / "samples", samples)
    before = files_of(tmp_path / "samples")
    options = RunOptions(root=tmp_path, workers=1)
    orders = {}
    with open_database(f"sqlite:///{tmp_path}/service.db") as database:
        nights = Nights(database, tmp_path, FakeClock(at("2026-11-20 00:00")))
        nights.store.add(made, ANYONE)
        for day in (20, 21, 22):
            nights.at(f"2026-11-{day} 01:00")  # two in Berlin
            run = nights.run_rows(made.name)[-1]
            job = nights.jobs.get(str(run.job_id))
            assert job is not None
            api.run(parse_spec(dict(job.spec)).spec, options=options, job_id=job.job_id)
            warnings = run_after_commit(
                database, job.job_id, lambda ref: open_bucket(ref, root=tmp_path)
            )
            assert warnings == []
            nights.end_jobs()
            latest = json.loads((tmp_path / "nightly" / "latest.json").read_bytes())
            assert (latest["job_id"], latest["prefix"]) == (job.job_id, f"2026-11-{day}")
            shards = sorted((tmp_path / "nightly" / latest["prefix"]).iterdir())
            orders[day] = [
                member.name for each in shards for member in read_shard(each.read_bytes())
            ]
        assert len({tuple(order) for order in orders.values()}) == 3
        assert all(sorted(order) == sorted(orders[20]) for order in orders.values())
        removed = [run.removed_at is not None for run in nights.run_rows(made.name)]
        assert removed == [True, False, False]
    kept = {each.name for each in (tmp_path / "nightly").iterdir()}
    assert kept == {".dsort", "2026-11-21", "2026-11-22", "latest.json"}
    assert len(orders[20]) == 80
    assert files_of(tmp_path / "samples") == before
