"""``dsort shuffle``, ``sort``, ``reshard``, ``convert``: each is the job of the spec that
``--print-spec`` prints, byte for byte."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import yaml

from dsort.errors import SpecError
from tests.support.commands import CommandLine
from tests.support.datasets import files_of, payloads_in, small_dataset, write_shards

VERBS = {
    "shuffle": ("shuffle", "in", "--seed", "7", "--shard-records", "5"),
    "shuffle by size": ("shuffle", "in", "--seed", "7", "--shard-size", "4KB"),
    "shuffle to a count": ("shuffle", "in", "--seed", "7", "--shards", "4"),
    "shuffle with defaults": ("shuffle", "in", "--seed", "7"),
    "splits": ("shuffle", "in", "--seed", "7", "--split", "train=0.5,val=0.5"),
    "filter": ("shuffle", "in", "--seed", "7", "--filter", 'size("jpg") > 900'),
    "one of each key": ("shuffle", "in", "--seed", "7", "--dedup", "key"),
    "one of each content": ("reshard", "in", "--dedup", "content"),
    "one of each value": ("reshard", "in", "--dedup", "cls"),
    "sort": ("sort", "in"),
    "sort in reverse": ("sort", "in", "--reverse", "--names", "r-%03d"),
    "sort by a member": ("sort", "in", "--by", "member:.cls:int", "--shards", "2"),
    "sort by a value": ("sort", "in", "--by", "size() + 1", "--reverse"),
    "sort by an algorithm": ("sort", "in", "--by", "algorithm:md5", "--reverse"),
    "sort by two": ("sort", "in", "--by", "member:.cls:int", "--by", "key", "--reverse"),
    "reshard": ("reshard", "in", "--shard-records", "4"),
    "reshard to another container": ("reshard", "in", "--to", "tfrecord"),
    "convert": ("convert", "in", "--to", ".zip"),
}


@pytest.mark.whole
@pytest.mark.parametrize("args", VERBS.values(), ids=VERBS)
def test_a_verb_writes_the_bytes_of_the_spec_that_it_prints(
    args: tuple[str, ...], cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", small_dataset("verbs"))
    verb, src, *rest = args
    printed = cli(verb, src, "out", *rest, "--print-spec")
    assert (printed.code, (tmp_path / "out").exists()) == (0, False)
    assert yaml.safe_load(printed.out) == json.loads(
        cli(verb, src, "out", *rest, "--print-spec", "--json").out
    )
    (tmp_path / "spec.yaml").write_text(printed.out)
    assert cli(verb, src, "out", *rest, "--workers", 1).code == 0
    assert cli("start", src, "again", "-f", "spec.yaml", "--workers", 1).code == 0
    made = written(tmp_path / "out")
    assert made
    assert made == written(tmp_path / "again")


def written(bucket: Path) -> dict[str, bytes]:
    """The shards of a result."""
    return {
        name: data
        for name, data in files_of(bucket, "**/*.*").items()
        if not name.startswith(".dsort/")
    }


def test_without_a_seed_each_shuffle_is_another_one_that_can_be_repeated(
    cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", small_dataset("verbs"))
    first, second = (cli("shuffle", "in", out, "--workers", 1) for out in ("a", "b"))
    assert (first.code, second.code) == (0, 0)
    assert written(tmp_path / "a") != written(tmp_path / "b")
    seed = next(line.split()[1] for line in first.err.splitlines() if line.startswith("seed "))
    assert cli("shuffle", "in", "c", "--seed", seed, "--workers", 1).code == 0
    assert written(tmp_path / "c") == written(tmp_path / "a")


def test_a_wrong_option_is_named_before_a_seed_is_chosen(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("verbs"))
    refused = cli("shuffle", "in", "out", "--split", "train=2")
    assert refused.code == SpecError.exit_code
    assert not [line for line in refused.err.splitlines() if line.startswith("seed ")]


def test_shards_of_a_larger_result_go_with_it_if_asked(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("verbs"))
    verb = ("shuffle", "in", "out", "--seed", 1, "--workers", 1)
    assert cli(*verb, "--shards", 4).code == 0
    stays = cli(*verb, "--shards", 2, "--overwrite")
    assert "--remove-stale" in stays.err
    assert len(written(tmp_path / "out")) == 4
    assert cli(*verb, "--shards", 2, "--overwrite", "--remove-stale").code == 0
    assert len(written(tmp_path / "out")) == 2


def test_splits_are_directories_with_shards_of_their_own(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("verbs"))
    args = ("--split", "train=0.75, val=0.25", "--shard-records", 6, "--seed", 1, "--workers", 1)
    assert cli("shuffle", "in", "out", *args).code == 0
    found = files_of(tmp_path / "out")
    assert {name.rpartition("/")[0] for name in found} == {"train", "val"}
    assert "train/shard-000000.tar" in found
    members = [name for name, _ in payloads_in(tmp_path / "out")]
    assert len(members) == len(set(members)) == 72


def test_shards_of_one_container_with_several_codecs_are_one_input(
    cli: CommandLine, tmp_path: Path
) -> None:
    lines = [b'{"id": %d}\n' % number for number in range(9)]
    write_shards(
        tmp_path / "in",
        {
            "a.jsonl": b"".join(lines[:3]),
            "b.jsonl.gz": gzip.compress(b"".join(lines[3:6])),
            "c.jsonl.gz": gzip.compress(b"".join(lines[6:])),
        },
    )
    assert cli("reshard", "in", "out", "--workers", 1).code == 0
    assert (tmp_path / "out/shard-000000.jsonl").read_bytes() == b"".join(lines)


REFUSED = {
    "no shard": (("empty", "out"), 3, "there is no shard in"),
    "no bucket": (("nowhere", "out"), 4, "nowhere"),
    "two containers": (("mixed", "out"), 2, "--from"),
    "no fraction": (("in", "out", "--split", "train,val"), 2, "--split"),
    "percentages": (("in", "out", "--split", "train=90,val=10"), 2, "train=0.9,val=0.1"),
    "two sizes": (("in", "out", "--shards", "2", "--shard-records", "3"), 2, "--shards"),
    "names in use": (("in", "used", "--names", "in-%d"), 2, "--overwrite"),
}


@pytest.mark.parametrize(("args", "code", "said"), REFUSED.values(), ids=REFUSED)
def test_a_verb_that_cannot_work_is_refused(
    args: tuple[str, ...], code: int, said: str, cli: CommandLine, tmp_path: Path
) -> None:
    shards = small_dataset("verbs")
    write_shards(tmp_path / "in", shards)
    write_shards(tmp_path / "used", shards)
    write_shards(tmp_path / "mixed", {"a.tar": b"", "b.tfrecord": b""})
    write_shards(tmp_path / "empty", {"notes.md": b""})
    ended = cli("shuffle", *args, "--workers", "1", "--seed", "1")
    assert (ended.code, said in ended.err) == (code, True), ended.err
    assert written(tmp_path / "used") == {name: each.data for name, each in shards.items()}
