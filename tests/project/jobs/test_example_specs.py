"""Every file in ``specs/`` is a spec that runs, or belongs to one; what it makes of the shards that
``specs/README.md`` describes is right, as ``dsort verify`` sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import dsort
from dsort import api
from dsort.options import RunOptions, open_with_settings
from dsort.settings import Settings, StoreSettings
from dsort.spec.load import load_spec
from tests.support.commands import ROOT, CommandLine
from tests.support.datasets import Member, Shard, example_samples, files_of, write_shards
from tests.support.internals import compile_pipeline, steps_of
from tests.support.loose_files import write_tree
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.usefixtures("workers_here")

SPECS = ROOT / "specs"
SPEC_SUFFIXES = {".json", ".yaml", ".yml"}
SCHEDULES = set((SPECS / "schedules").iterdir())  # a test of their own runs them
EXAMPLES = sorted(
    path for path in SPECS.rglob("*") if path.suffix in SPEC_SUFFIXES and path not in SCHEDULES
)
IN_STORES = [path for path in EXAMPLES if not load_spec(path).spec.input_bck.is_directory]
BLOG_POST = SPECS / "blog-post.json"
RECORDS = 10


@pytest.fixture
def buckets(tmp_path: Path) -> Path:
    """What ``specs/README.md`` says that the specs need."""

    def captions(count: int) -> Shard:
        return Shard(tuple(Member(f"{n:06d}.txt", b"words") for n in range(count, 0, -3)))

    write_shards(tmp_path / "samples", example_samples("samples-", 8, 3, RECORDS))
    write_shards(tmp_path / "images", example_samples("samples-", 19, 2, RECORDS))
    pets = {f"{kind}/{at:03d}.jpg": b"image" * at for kind in ("cat", "dog") for at in range(20)}
    write_tree(tmp_path / "pets", pets)
    write_shards(tmp_path / "captions", {"all.tar": captions(100)})
    return tmp_path


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "path", [each for each in EXAMPLES if each not in IN_STORES], ids=lambda path: path.name
)
def test_an_example_spec_runs_and_its_result_is_right(buckets: Path, path: Path) -> None:
    spec = dsort.load_spec(path)
    options = RunOptions(root=buckets, workers=2)
    before = {name: files_of(buckets / name) for name in ("samples", "images")}
    report = dsort.run(spec, options=options)
    if spec.dry_run:
        assert (report.state, report.manifest_name) == ("planned", None)
        assert sorted(each.name for each in buckets.iterdir()) == [
            "captions",
            "images",
            "pets",
            "samples",
        ]
        return
    assert report.state == "finished"
    assert (report.output_shards > 1) == (path != BLOG_POST)  # whose shards are of 100 MB
    assert report.records >= 2 * RECORDS
    assert report.manifest_name is not None
    bucket = buckets / spec.output_bck.uri
    manifest = (bucket / report.manifest_name).read_bytes()
    verified = api.verify(manifest, options=options)
    # What code has made is not made again.
    made = compile_pipeline(spec, steps=steps_of(spec)).makes_records
    assert (verified.problems, len(verified.warnings)) == ((), int(made))
    assert verified.records == report.records
    listed = [shard["name"] for shard in json.loads(manifest)["outputs"]]
    listed = [name for name in listed if "//" not in name]  # others are in other buckets
    tables = {path.relative_to(bucket).as_posix() for path in bucket.rglob("*.parquet")}
    written = (files_of(bucket).keys() | tables) - before.get(spec.output_bck.uri, {}).keys()
    assert sorted(listed) == sorted(written)
    for name, files in before.items():
        assert files.items() <= files_of(buckets / name).items()


@pytest.mark.parametrize("path", IN_STORES, ids=lambda path: path.name)
def test_an_example_spec_runs_in_an_object_store(buckets: Path, s3: S3Server, path: Path) -> None:
    spec = dsort.load_spec(path)
    if spec.input_bck.endpoint_url:  # of a server that everybody may have: ours is elsewhere
        here = replace(spec.input_bck, endpoint_url=s3.endpoint_url)
        spec = spec.model_copy(update={"input_bck": here})
    settings = Settings(stores=(("s3", StoreSettings(endpoint_url=s3.endpoint_url)),))
    options = RunOptions(root=buckets, workers=2, settings=settings)
    source = open_with_settings(spec.input_bck, root=buckets, settings=settings)
    target = open_with_settings(spec.output_bck, root=buckets, settings=settings)
    source.create()
    shards = files_of(buckets / "samples")
    for name, data in shards.items():
        source.write(name, data)
    report = dsort.run(spec, options=options)
    assert (report.state, report.totals.input_shards) == ("finished", len(shards))
    assert report.manifest_name is not None
    manifest = target.read(report.manifest_name)
    verified = api.verify(manifest, options=options)
    assert (verified.problems, verified.warnings) == ((), ())
    assert verified.records == report.records == len(shards) * RECORDS
    listed = [shard["name"] for shard in json.loads(manifest)["outputs"]]
    assert sorted(listed) == [each.name for each in target.list()]
    assert {each.name: source.read(each.name) for each in source.list()} == shards
    assert s3.access_key.encode() not in manifest


def test_everything_in_specs_is_a_spec_or_belongs_to_one() -> None:
    key_maps = {Path(source) for each in EXAMPLES if (source := load_spec(each).spec.ekm_file)}
    others = {path for path in SPECS.rglob("*") if path.is_file() and path not in EXAMPLES}
    named = {SPECS / "taken-out.txt", SPECS / "annotate.py"}  # by steps
    assert others == {SPECS / "README.md", *key_maps, *named, *SCHEDULES}


def test_the_blog_posts_spec_runs_verbatim_on_the_command_line(
    buckets: Path, cli: CommandLine
) -> None:
    started = cli("start", "-f", BLOG_POST, "--workers", 2, "--json")
    assert started.code == 0
    report = json.loads(started.out)
    assert (report["input_shards"], report["records"]) == (19, 19 * RECORDS)
    assert report["seed"]
    assert sorted(files_of(buckets / "images", "shuffled-*.tar")) == ["shuffled-shard-0.tar"]
    verified = cli("verify", "images")
    assert verified.code == 0
    assert verified.out.startswith(f"job      {report['job_id']}: correct")
