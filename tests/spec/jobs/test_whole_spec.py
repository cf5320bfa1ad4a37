"""One spec with every kind of step, one behind the other: what comes out of it is what a plain
program makes of the same records."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dsort
from dsort.options import RunOptions
from dsort.spec.load import load_spec
from tests.support.datasets import Member, Shard, write_shards
from tests.support.etl_server import EtlServer, etl_server

pytestmark = pytest.mark.usefixtures("workers_here")

SPEC = """
inputs:
- {name: web, input_bck: in}
output_bck: out
output_format: "out-%06d"
output_shard_records: 5
algorithm: {kind: shuffle, seed: 1}
require: {extensions: ["jpg;png;jpeg", cls], on_missing: exclude}
transform:
  steps:
  - filter: 'ext("json").score > 0.5 && size("jpg") < 5_000_000'
  - keep_keys: {file: subset.txt}
  - fields: {keep: [jpg, "info:json", cls, mask.png], rename: {"seg.png": mask.png}, drop: [xmp]}
  - slice: "0:1000000:2"
  - sample: {fraction: 1, by: key}
  - rekey: "{input}/{shard}/{key}"
  - map: {python: "steps.py:shrunk", decode: {jpg: pil}, drop: [info]}
  - map: {python: "steps.py:Brightness", args: {more: 1}, batch_size: 256,
          resources: {num_gpus: 1}, concurrency: [1, 8]}
  - flat_map: {python: "steps.py:halves", keys: "{key}/{i:04d}"}
  - exec: {command: [cp, "$IN/txt", "$OUT/log"], timeout: 45s, protocol: files}
  - http: {url: "URL", protocol: hpush, members: {txt: txt}, timeout: 45s}
  on_error: skip
  max_errors: 50%
  rejects: payload
on_shard: {exec: [cp, "{path}", "{path}.copy"], timeout: 45s}
"""

CODE = """
def shrunk(sample):
    if sample["__key__"].endswith("/19"):
        raise ValueError("this one")
    return {**sample, "jpg": sample["jpg"].resize((2, 2)).convert("L").tobytes()}


class Brightness:
    def __init__(self, more):
        self.more = more

    def __call__(self, samples):
        return [{**each, "txt": f"light {max(each['jpg']) + self.more}"} for each in samples]


def halves(sample):
    for half in (sample["jpg"][:2], sample["jpg"][2:]):
        yield {"bin": half, "txt": sample["txt"], "cls": sample["cls"]}
"""


@pytest.fixture
def server() -> Iterator[EtlServer]:
    with etl_server() as etl:
        yield etl


def picture(light: int) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (8, 8), (light, light, light)).save(held, "PNG")
    return held.getvalue()


def shard_of(numbers: range) -> Shard:
    members = []
    for n in numbers:
        members += [
            Member(f"{n:02d}.jpg", picture(10 * n)),
            Member(f"{n:02d}.json", json.dumps({"score": n / 24}).encode()),
            Member(f"{n:02d}.seg.png", b"mask"),
            Member(f"{n:02d}.xmp", b"x"),
        ]
        if n % 5:
            members.append(Member(f"{n:02d}.cls", b"%d" % (n % 3)))
    return Shard(tuple(members))


def expected() -> dict[str, bytes]:
    """The members of the result, worked out by a plain program."""
    subset = {f"{n:02d}" for n in range(24) if n != 17}
    kept = [n for n in range(24) if n % 5 and n / 24 > 0.5 and f"{n:02d}" in subset]
    found = {}
    for n in kept[::2]:
        if n == 19:
            continue  # a step fails at it
        key = f"web/s-{n // 12}/{n:02d}"
        for half in range(2):
            name = f"{key}/{half:04d}"
            light = f"light {10 * n + 1}".encode()
            found |= {
                f"{name}.bin": bytes([10 * n] * 2),
                f"{name}.cls": b"%d" % (n % 3),
                f"{name}.txt": light.upper(),
                f"{name}.log": light,
            }
    return found


def members_of(bucket: Path) -> dict[str, bytes]:
    found: dict[str, Any] = {}
    for path in sorted(bucket.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                opened = archive.extractfile(info)
                assert opened is not None
                assert info.name not in found
                found[info.name] = opened.read()
    return found


def test_all_steps_together_make_what_a_plain_program_makes(
    tmp_path: Path, server: EtlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # a machine with one GPU
    numbers = {"s-0.tar": range(12), "s-1.tar": range(12, 24)}
    write_shards(tmp_path / "in", {name: shard_of(own) for name, own in numbers.items()})
    (tmp_path / "steps.py").write_text(CODE)
    (tmp_path / "subset.txt").write_text("".join(f"{n:02d}\n" for n in range(24) if n != 17))
    (tmp_path / "spec.yaml").write_text(SPEC.replace("URL", server.url))
    spec = load_spec(tmp_path / "spec.yaml").spec
    report = dsort.run(spec, options=RunOptions(root=tmp_path, workers=1))
    assert members_of(tmp_path / "out") == expected()
    (rejects,) = (tmp_path / "out").glob(".dsort/*/rejects.jsonl")
    (reject,) = map(json.loads, rejects.read_text().splitlines())
    assert (reject["key"], "this one" in reject["error"]) == ("web/s-1/19", True)
    copies = sorted(path.name for path in (tmp_path / "out").glob("*.copy"))
    assert copies == [f"out-{n:06d}.tar.copy" for n in range(report.output_shards)]
    manifest = (tmp_path / "out" / (report.manifest_name or "")).read_bytes()
    assert dsort.verify(manifest, options=RunOptions(root=tmp_path)).problems == ()
