"""Shuffles shards with the standard library alone: in memory, by a seeded permutation."""

from __future__ import annotations

import argparse
import json
import random
import tarfile
import time
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

Record = list[tuple[tarfile.TarInfo, bytes]]


def read_records(shards: Iterable[str]) -> list[Record]:
    """All records of all shards; members share a key up to the first dot of their name."""
    records: dict[tuple[str, str], Record] = {}
    for shard in shards:
        with tarfile.open(shard) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    key = member.name.split(".", 1)[0]
                    records.setdefault((shard, key), []).append((member, file.read()))
    return list(records.values())


def write_records(records: Iterable[Record], output: Path, shard_bytes: int) -> None:
    """Write ``records`` to shards that close once their payload reaches ``shard_bytes``."""
    archive: tarfile.TarFile | None = None
    payload_bytes = shards = 0
    for record in records:
        if archive is None:
            path = output / f"out-{shards:05d}.tar"
            archive = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            shards += 1
        for member, payload in record:
            archive.addfile(member, BytesIO(payload))
            payload_bytes += len(payload)
        if payload_bytes >= shard_bytes:
            archive.close()
            archive, payload_bytes = None, 0
    if archive is not None:
        archive.close()


def main() -> None:
    """Read the given shards, and write shards of ``--shard-bytes`` payload to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--shard-bytes", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("shards", nargs="+")
    arguments = parser.parse_args()

    start = time.perf_counter()
    records = read_records(arguments.shards)
    random.Random(arguments.seed).shuffle(records)
    write_records(records, arguments.output, arguments.shard_bytes)
    print(json.dumps({"work_seconds": time.perf_counter() - start, "records": len(records)}))


if __name__ == "__main__":
    main()
