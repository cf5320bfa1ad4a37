"""A store that an installed package adds: the law of buckets holds for its buckets, and jobs, whose
workers are processes of their own, read and write them by their URIs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsort
from dsort.errors import InvariantError, SpecError
from dsort.options import default_options
from dsort.settings import load_settings
from dsort.spec.buckets import parse_bucket
from dsort.spec.load import parse_spec
from dsort.spec.part import FieldError
from dsort.storage import registry
from dsort.storage.bucket import Bucket
from dsort.storage.limit import StoreLimits
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from tests.support.bucket_suite import BucketSuite
from tests.support.commands import ROOT
from tests.support.datasets import read_shard, small_dataset, write_shards
from tests.support.refusals import raises

ENTRY_POINT = "[dsort.stores]\nshelf = tests.support.added_store:ShelfStore\n"
METADATA = "Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n"


@pytest.fixture(autouse=True)
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the buckets are of a package that is installed for this process and its children."""
    site = tmp_path / "site"
    info = site / "shelves-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    monkeypatch.syspath_prepend(str(site))
    paths = filter(None, (str(site), str(ROOT), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("SHELVES", str(tmp_path / "shelves"))
    known = dict(registry.STORES)
    monkeypatch.setattr(registry.STORES, "_has_installed", False)
    yield tmp_path / "shelves"
    for scheme in registry.STORES.keys() - known.keys():
        del registry.STORES[scheme]


class TestItsBuckets(BucketSuite):
    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Bucket:
        bucket = open_bucket("shelf://contract/under", root=tmp_path)
        bucket.create()
        return bucket


def test_a_job_reads_and_writes_them(tmp_path: Path, shelves: Path) -> None:
    write_shards(shelves / "pictures", small_dataset(tmp_path.name))
    report = dsort.run(
        {
            "input_bck": "shelf://pictures",
            "output_bck": {"name": "shuffled/today", "provider": "carpenter"},
            "input_format": {"glob": "*.tar"},
            "output_format": "out-%03d",
            "output_shard_size": "10KB",
            "algorithm": {"kind": "shuffle"},
        },
        options=default_options(),
    )
    written = members_of(shelves / "shuffled/today")
    assert written == members_of(shelves / "pictures")
    assert len(written) == report.totals.members > 0
    assert report.output_uri == "shelf://shuffled/today"


def members_of(directory: Path) -> list[tuple[str, bytes]]:
    shards = [path.read_bytes() for path in directory.glob("*.tar")]
    return sorted((each.name, each.payload) for data in shards for each in read_shard(data))


def test_its_uris_are_understood_as_those_of_any_store() -> None:
    assert parse_bucket("board://pictures/train") == BucketRef("shelf", "pictures/train")
    with raises(FieldError, "profile", "shelf://"):
        parse_bucket({"name": "shelf://pictures", "profile": "lab"})
    with raises(FieldError, "pict!res"):
        parse_bucket("shelf://pict!res")


def test_settings_may_say_how_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "dsort.toml").write_text('[stores.shelf]\nregion = "attic"\npart_bytes = "8MiB"\n')
    settings = load_settings({}, tmp_path, tmp_path)
    assert settings.of_bucket(BucketRef("shelf", "pictures")).region == "attic"
    assert settings.limits(BucketRef("shelf", "pictures")).part_bytes == 8 << 20
    (tmp_path / "dsort.toml").write_text('[stores.shelf]\nprofile = "lab"\n')
    with raises(SpecError, "stores.shelf.profile"):
        load_settings({}, tmp_path, tmp_path)


def test_without_the_package_it_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site/shelves-1.0.dist-info/entry_points.txt").unlink()
    with raises(FieldError, '"shelf://pictures"'):
        parse_bucket("shelf://pictures")
    with pytest.raises(InvariantError):
        registry.open_object_bucket(BucketRef("shelf", "pictures"), StoreLimits())


def test_a_store_that_is_only_read_is_listed_and_says_where_to_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = registry.store_of("shelf")
    assert store is not None
    monkeypatch.setattr(store, "is_read_only", True, raising=False)
    monkeypatch.setattr(store, "write_hint", "ask the carpenter", raising=False)
    spec = {"input_bck": "shelf://pictures", "output_format": "s-%d", "output_shard_records": 5}
    with pytest.raises(SpecError) as caught:
        parse_spec({**spec, "output_bck": "shelf://shuffled"})
    assert [(each.path, each.hint) for each in caught.value.problems] == [
        ("output_bck", "ask the carpenter")
    ]
    assert parse_spec({**spec, "output_bck": "shuffled"}).spec.input_bck.scheme == "shelf"
    monkeypatch.setattr(store, "is_listed", False, raising=False)
    with pytest.raises(SpecError) as caught:
        parse_spec({**spec, "output_bck": "shuffled"})
    assert [each.path for each in caught.value.problems] == ["input_format"]
