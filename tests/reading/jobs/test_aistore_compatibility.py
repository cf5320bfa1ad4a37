"""``compatibility: aistore`` does what AIStore does, where that is defined: judged by plain models
of its rules, over members whose names and sizes set them apart from dsort's own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort import RunOptions, verify
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import keys_in, run_local, spec_of
from tests.support.zips import zip_of

pytestmark = pytest.mark.usefixtures("workers_here")

NAMES = [
    *("a.jpg", "a-1.jpg", "a.jpg2", "a.jpeg", "B.jpg", "b/a.jpg", "b.jpg", "ab", "c.x\u0101"),
    *("d/e.f/g.txt", "d/e.txt", "z.jpg", "z1.jpg", "zz.JPG", "q.jpg", "q.jpg\u0101"),
]
OF_NOTHING = hashlib.md5(b"").digest()
"""AIStore's ``md5`` appends it to the name, and hashes nothing."""


def record_name(name: str) -> str:
    """What AIStore knows a record by: the name up to the first dot of its last part."""
    place, slash, base = name.rpartition("/")
    return place + slash + base.partition(".")[0]


def checked(root: Path, spec: dict[str, Any], **options: Any) -> dict[str, bytes]:
    """The shards of a job, of which ``dsort verify`` finds nothing wrong."""
    report = run_local(root, {"compatibility": "aistore"} | spec, **options)
    manifest = (root / "out" / str(report.manifest_name)).read_bytes()
    assert verify(manifest, options=RunOptions(root=root, workers=1)).ok
    return files_of(root / "out", "**/*")


@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize("kind", ["alphanumeric", "md5"])
def test_whole_names_of_first_members_are_compared(kind: str, move: str, tmp_path: Path) -> None:
    mixed = random.Random(7).sample(NAMES, len(NAMES))
    parts = (mixed[:8], mixed[8:])
    shards = [Shard(tuple(Member(name, name.encode()) for name in part)) for part in parts]
    write_shards(tmp_path / "in", {f"in-{at}.tar": shard for at, shard in enumerate(shards)})
    firsts: list[str] = []
    for part in parts:
        firsts += {record_name(name): name for name in reversed(part)}.values()

    def compared(name: str) -> bytes:
        return name.encode() + (OF_NOTHING if kind == "md5" else b"")

    algorithm = {"kind": kind, "decreasing": move == "map"}
    spec = spec_of(algorithm=algorithm, output_shard_records=99)
    (data,) = (each for name, each in checked(tmp_path, spec, move=move).items() if "out" in name)
    there = [name for name in keys_in(data) if name in firsts]
    assert there == sorted(firsts, key=compared, reverse=move == "map")
    assert sorted(keys_in(data)) == sorted(NAMES)


def placed(records: list[list[Member]], is_full: Callable[[int, int], bool]) -> list[list[str]]:
    """The shards of one template of a key map: a record goes into the last one unless that is full
    (by its payload, and its members)."""
    shards: list[list[str]] = []
    payload_bytes, members = 0, 0
    for record in records:
        if not shards or is_full(payload_bytes, members):
            shards.append([])
            payload_bytes, members = 0, 0
        shards[-1] += [member.name for member in record]
        payload_bytes += sum(len(member.payload) for member in record)
        members += len(record)
    return shards


@pytest.mark.parametrize("limit_bytes", [1, 700, 1424, 1425, 3000])
@pytest.mark.parametrize("extension", [".tar", ".zip"])
@pytest.mark.parametrize("way", ["aistore", "dsort"])
@pytest.mark.sample(keep=3)
def test_shards_of_a_key_map_close_once_they_are_over_the_limit(
    way: str, extension: str, limit_bytes: int, tmp_path: Path
) -> None:
    """Of tars, whose headers count in AIStore, and of zips, whose headers do not."""
    sizes = [*range(100, 900, 50), 200, 200, 1]
    records = [
        [Member(f"{at:02}.{end}", b"x" * size) for end in ("cls", "jpg")[: 1 + at % 2]]
        for at, size in enumerate(sizes)
    ]
    members = [member for each in records for member in each]
    (tmp_path / "in").mkdir()
    pairs = [(member.name, member.payload) for member in members]
    data = Shard(tuple(members)).data if extension == ".tar" else zip_of(pairs)
    (tmp_path / "in" / f"in-0{extension}").write_bytes(data)
    spec = spec_of(
        ekm={"all-%02d.tar": ["."]},
        output_shard_size=limit_bytes,
        output_shard_records=None,
        input_extension=extension,
        algorithm={"kind": "alphanumeric"},
        compatibility=way,
    )
    del spec["output_format"]

    def is_full(payload_bytes: int, members: int) -> bool:
        if way == "dsort":
            return payload_bytes >= limit_bytes
        return payload_bytes + members * (512 if extension == ".tar" else 0) > limit_bytes

    found = checked(tmp_path, spec)
    made = [keys_in(found[name]) for name in sorted(found) if name.startswith("all-")]
    assert made == placed(records, is_full)


@pytest.mark.parametrize(
    ("key_type", "order"), [("string", [b"7", b"7\n", b"8"]), ("int", [b"7\n", b"7", b"8"])]
)
def test_a_newline_is_a_part_of_a_string_key_and_of_no_number(
    key_type: str, order: list[bytes], tmp_path: Path
) -> None:
    keys = [b"7\n", b"8", b"7"]
    write_shards(
        tmp_path / "in",
        {"in-0.tar": Shard(tuple(Member(f"{at}.cls", key) for at, key in enumerate(keys)))},
    )
    algorithm = {"kind": "content", "extension": ".cls", "content_key_type": key_type}
    found = checked(tmp_path, spec_of(algorithm=algorithm))
    assert [keys[int(name[0])] for name in keys_in(found["out-0.tar"])] == order


def test_what_a_spec_says_itself_stays_and_others_have_no_names_to_compare() -> None:
    def algorithm(**fields: Any) -> Any:
        spec = parse_spec(spec_of(compatibility="aistore", **fields)).spec
        assert parse_spec(spec.canonical()).spec == spec
        return spec.algorithm

    by_name = {"kind": "alphanumeric"}
    assert algorithm(algorithm=by_name).compare == "name"
    assert algorithm(algorithm=by_name | {"compare": "key"}).compare == "key"
    assert algorithm(algorithm=by_name, output_extension=".tgz").compare == "name"
    assert algorithm(algorithm=by_name, output_extension=".jsonl").compare is None
    assert algorithm(algorithm=by_name, input_extension=".parquet").compare is None
    assert parse_spec(spec_of(algorithm=by_name)).spec.algorithm.compare is None
