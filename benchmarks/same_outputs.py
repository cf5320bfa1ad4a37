"""Whether two checkouts of dsort make the same bytes of every spec that both have in ``specs/``.

    python -m benchmarks.same_outputs OTHER_CHECKOUT

runs each spec in both, once with mapped and once with spilled payload, and compares all that the
jobs wrote, byte for byte, but the files under ``.dsort/`` (they hold times and job ids). A spec
without a seed gets one. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.seaweedfs import S3Server, seaweedfs
from tests.support.datasets import example_samples, write_shards

__all__ = ["main"]

HERE = Path(__file__).resolve().parent.parent
RECORDS = 25
MOVES = ("map", "spill")
SEED = 20260131
JOB_ID = re.compile(rb"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
IN_STORES = ("s3-endpoint", "s3-shuffle")
S3_BUCKETS = ("samples", "shuffled")


def example_specs() -> list[Path]:
    """The specs of jobs in ``specs/``; those of schedules are not among them."""
    return sorted(p for p in (HERE / "specs").glob("*.*") if p.suffix in (".json", ".yaml"))


def prepared_spec(path: Path, server: S3Server) -> dict[str, Any]:
    """The spec with a seed, and with the address of the server that runs here."""
    spec: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    algorithm = spec.setdefault("algorithm", {"kind": "shuffle"})
    if algorithm.get("kind") == "shuffle":
        algorithm.setdefault("seed", SEED)
    bucket = spec.get("input_bck")
    if isinstance(bucket, dict) and "endpoint_url" in bucket:
        bucket["endpoint_url"] = server.endpoint_url
    return spec


def digest_of(data: bytes) -> str:
    """SHA-256, with all job ids alike: an index says which job wrote it."""
    return hashlib.sha256(JOB_ID.sub(b"JOB", data)).hexdigest()


def digests_of(root: Path) -> dict[str, str]:
    """SHA-256 of every file below ``root`` that is not under ``.dsort``."""
    return {
        JOB_ID.sub(b"JOB", bytes(path.relative_to(root))).decode(): digest_of(path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".dsort" not in path.parts
    }


def objects_of(server: S3Server) -> Iterator[tuple[str, str]]:
    """(bucket, key) of all objects in the S3 buckets that specs name."""
    for bucket in S3_BUCKETS:
        for page in server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for each in page.get("Contents", ()):
                yield bucket, each["Key"]


def digests_in_stores(server: S3Server) -> dict[str, str]:
    """The same of the objects in the S3 buckets."""
    return {
        f"s3://{bucket}/{key}": digest_of(
            server.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        )
        for bucket, key in objects_of(server)
        if ".dsort/" not in key
    }


def fill_stores(server: S3Server, shards: Path) -> None:
    """Leave the shards in the S3 buckets, and nothing else."""
    for bucket, key in list(objects_of(server)):
        server.client().delete_object(Bucket=bucket, Key=key)
    for shard in sorted(shards.iterdir()):
        server.client().put_object(
            Bucket="samples", Key=f"train/{shard.name}", Body=shard.read_bytes()
        )


def run_spec(checkout: Path, path: Path, move: str, server: S3Server) -> dict[str, str]:
    """Run one spec of ``specs/`` with the code of ``checkout``; digests of all files after it. Of
    a job that is refused, why: some move payload in one of the two ways only, or want other
    inputs."""
    with tempfile.TemporaryDirectory(prefix="same-outputs-") as text:
        root = Path(text)
        shutil.copytree(HERE / "specs", root / "specs")
        (root / "specs" / path.name).unlink()
        spec = root / "specs" / f"{path.stem}.json"
        spec.write_text(json.dumps(prepared_spec(path, server)), encoding="utf-8")
        write_shards(root / "samples", example_samples("samples-", 8, 3, RECORDS))
        write_shards(root / "images", example_samples("samples-", 19, 2, RECORDS))
        in_store = path.stem in IN_STORES
        if in_store:
            fill_stores(server, root / "samples")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("DSORT_")
        }
        environment |= server.environment() | {
            "PYTHONPATH": str(checkout),
            "DSORT_S3_ENDPOINT_URL": server.endpoint_url,
            "XDG_CONFIG_HOME": str(root / "no-settings"),
        }
        command = [sys.executable, "-m", "dsort", "start", "-f", str(spec), "--move", move]
        done = subprocess.run(
            [*command, "--workers", "2", "--progress", "none"],
            cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if done.returncode:
            said = done.stderr.splitlines()[0].replace(text, "")
            return {f"refused, {done.returncode}: {said}": ""}
        shutil.rmtree(root / "specs")
        return digests_of(root) | (digests_in_stores(server) if in_store else {})


def main() -> int:
    """Compare; print a line a spec."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the other checkout of dsort")
    other = parser.parse_args().checkout.resolve()
    if not (other / "dsort" / "__init__.py").is_file():
        parser.error(f"{other} is no checkout of dsort")
    different = 0
    with tempfile.TemporaryDirectory() as text, seaweedfs(Path(text)) as server:
        for bucket in S3_BUCKETS:
            server.client().create_bucket(Bucket=bucket)
        for path in example_specs():
            if not (other / "specs" / path.name).exists():
                print(f"{path.name:24} is not in {other}")
                continue
            for move in MOVES if path.stem not in IN_STORES else ("spill",):
                ours, theirs = (run_spec(each, path, move, server) for each in (HERE, other))
                verdict = "same" if ours == theirs else "DIFFERENT"
                different += ours != theirs
                print(f"{path.name:24} {move:6} {len(ours):4} files  {verdict}", flush=True)
                for name in sorted(ours.keys() | theirs.keys()):
                    if ours.get(name) != theirs.get(name) or name.startswith("refused"):
                        print(f"    {name}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
