"""The reasons that verify gives for records that are not in order."""

from __future__ import annotations

from pathlib import Path

import dsort
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import run_local, spec_of


def test_the_hash_of_a_shuffle_among_keys_is_named_where_it_is_not_heeded(tmp_path: Path) -> None:
    keys = [f"{number:02d}" for number in range(8)]
    members = [Member(f"{key}.cls", b"1") for key in keys]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(tuple(members))})
    by_class = {"kind": "content", "extension": ".cls", "content_key_type": "int"}
    order = {"seed": 3, "keys": [by_class, {"kind": "shuffle"}]}
    report = run_local(tmp_path, spec_of(algorithm=order, output_shard_records=4))
    one, two = (tmp_path / "out" / f"out-{number}.tar" for number in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    found = dsort.verify(report, options=RunOptions(root=tmp_path))
    texts = {each.text for each in found.problems if each.kind == "order"}
    assert texts == {"the shuffle's hash puts it before the record before it"}
