"""Jobs of a service have their scratch where none of its users can write."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import dsort
from dsort.errors import ForbiddenError
from dsort.options import RunOptions
from dsort.service.config import ServiceConfig, policy_of
from dsort.service.hosting.process import JobEnvironment
from dsort.service.security.guard import check_spec
from dsort.spec.load import parse_spec
from tests.support.datasets import write_shards
from tests.support.engine import shard_of, spec_of
from tests.support.internals import NODE_FILE, Event, PhaseDone


@pytest.mark.parametrize(("given", "ray"), [(None, None), ("fast", None), (None, "ray://h:1")])
def test_scratch_of_a_service_is_in_no_bucket_of_its_users(
    tmp_path: Path, given: str | None, ray: str | None
) -> None:
    root = tmp_path / "root"
    for bucket in ("in", "out"):
        (root / bucket).mkdir(parents=True)
    config = ServiceConfig(
        run=RunOptions(
            root=root,
            runtime="ray" if ray else "local",
            ray_address=ray,
            scratch=root / given if given else None,
        ),
        state_dir=tmp_path / "state",
        database_url="sqlite://",
        replica="r",
    )
    options = JobEnvironment.of(config).options()
    expected = {None: tmp_path / "state" / "scratch", "fast": root / "fast"}[given]
    assert options.scratch == (None if ray else expected)
    found: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "extract":
            found.extend(str(path) for path in tmp_path.rglob(NODE_FILE))

    write_shards(root / "in", {"in-0.tar": shard_of("a", "b")})
    spec = parse_spec(spec_of(input_format="in-{0..0}")).spec
    local = replace(options, runtime="local", ray_address=None, workers=1)
    dsort.run(spec, options=local, on_event=listen)
    assert [place for place in found if place.startswith(str(root / "out"))] == []
    assert len(found) == (0 if ray else 1)
    if given:  # and no spec names it as a bucket
        with pytest.raises(ForbiddenError):
            check_spec(parse_spec(spec_of(output_bck=given)).spec, policy_of(config))
