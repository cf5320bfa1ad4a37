"""The guest's work on shards, in a process of its own: ``python -m
dsort.service.aistore.shard_works``.

The process transforms a shard or one record of a shard, lists the files of a shard, or reads one
file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from dsort import api
from dsort.containers.tar.header import tar_header, tar_padding
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.data.json_values import to_json
from dsort.errors import NotFoundError, TooLargeError
from dsort.options import RunOptions
from dsort.reading.places import ShardPlace
from dsort.reading.shard import Record, Shard
from dsort.service.objects import shard_main
from dsort.service.objects.shard_looks import (
    CONTENT_BYTES_MAX,
    Order,
    record_of,
    shown_record,
)
from dsort.service.objects.shard_main import (
    OUT_DIRECTORY,
    bucket_of,
    limit_memory,
    main,
    opened_shard,
    write_out,
)
from dsort.settings import Settings
from dsort.shard_contents import ShardContents, open_contents
from dsort.sizes import format_bytes
from dsort.spec.load import parse_spec
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef

FILES_MAX: Final = 200_000
FILE_BYTES_MAX: Final = 4 << 30
MEMORY_BYTES_MAX: Final = 512 << 20
RECORD_BYTES_MAX: Final = 64 << 20  # the largest record that a transform is tried on
CHANGED_MAX: Final = 20
ONE: Final = "one.tar"


def _transform(directory: Path, order: Order) -> None:
    spec = {**order["spec"], "output_bck": f"file://{directory / OUT_DIRECTORY}"}
    api.run(parse_spec(spec).spec, options=_options(directory, order))


def _options(directory: Path, order: Order) -> RunOptions:
    """The options of a job of one shard. Code of the spec runs if the service has recorded who
    allowed the code."""
    scratch = directory / "scratch"
    scratch.mkdir()
    return RunOptions(
        root=Path(order["root"]),
        scratch=scratch,
        workers=1,
        memory_max_bytes=min(order["memory_max_bytes"] or MEMORY_BYTES_MAX, MEMORY_BYTES_MAX),
        bandwidth_max_bytes_per_s=order["bandwidth_max_bytes_per_s"],
        settings=Settings.of_json(order["settings"]),
        forks=True,
        runs_code=bool((order["spec"].get("transform") or {}).get("allowed_by")),
        fetch=replace(FetchPolicy.of(order["fetch"]), own=(str(directory),)),
    )


def _change(directory: Path, order: Order) -> None:
    """Write a record, and the records that a transform makes of it, in a job with only this
    record."""
    with opened_shard(order) as shard:
        record = record_of(shard, int(order["number"]))
        if record.size_bytes > RECORD_BYTES_MAX:
            raise TooLargeError(
                f"the record has more than {format_bytes(RECORD_BYTES_MAX)}",
                hint="`dsort transform` takes records of any size",
            )
        before, left = shown_record(record, CONTENT_BYTES_MAX)
        made_in, made_out = directory / "one", directory / "changed"
        made_in.mkdir()
        made_out.mkdir()
        _write_shard(made_in / ONE, record)
    fields = {
        "input_bck": f"file://{made_in}",
        "input_format": {"objnames": [ONE]},
        "input_extension": ".tar",
        "output_bck": f"file://{made_out}",
        "output_extension": ".tar",
    }
    api.run(parse_spec({**order["spec"], **fields}).spec, options=_options(directory, order))
    after = _changed(made_out, left)
    write_out(directory, [to_json({"before": before, "after": after}).encode()])


def _write_shard(path: Path, record: Record) -> None:
    with path.open("wb") as stream:
        for name, content in record.members.items():
            stream.write(tar_header(name.encode("utf-8", "surrogateescape"), len(content)))
            stream.write(content)
            stream.write(tar_padding(len(content)))
        stream.write(END_OF_ARCHIVE)


def _changed(made_out: Path, left: int) -> list[dict[str, Any]]:
    """The records that the transform made; empty if the transform drops the record."""
    names = sorted(each.name for each in made_out.glob("*.tar"))
    bucket = open_bucket(BucketRef("file", str(made_out)), root=made_out)
    found = []
    for name in names:
        with Shard(ShardPlace(bucket, name)) as shard:
            for number in range(min(len(shard), CHANGED_MAX)):
                document, left = shown_record(shard.record(number), left)
                found.append(document)
    return found


def _look(directory: Path, order: Order) -> None:
    """The names of the files in a shard, or one of these files."""
    limit_memory()
    with open_contents(bucket_of(order), order["name"]) as contents:
        is_list = order["look"] == "list"
        write_out(directory, _list(contents) if is_list else _member(contents, order["member"]))


def _list(contents: ShardContents) -> Iterator[bytes]:
    too_many = TooLargeError(
        f"the shard has more than {FILES_MAX:,} files", hint="`dsort inspect` lists them all"
    )
    if contents.count_records() > FILES_MAX:  # a record has at least one file
        raise too_many
    for count, (name, size_bytes) in enumerate(contents.files()):
        if count == FILES_MAX:
            raise too_many
        yield json.dumps([name, size_bytes]).encode() + b"\n"


def _member(contents: ShardContents, name: str) -> Iterator[memoryview | bytes]:
    part = contents.member(name)
    if part is None:
        raise NotFoundError(f"the shard has no file {name}")
    if contents.size_bytes(part) > FILE_BYTES_MAX:
        raise TooLargeError(
            f"{name} has more than {format_bytes(FILE_BYTES_MAX)}", hint="`dsort cat` writes it"
        )
    yield from contents.payloads(part)


WORKS: Final[Mapping[str, shard_main.Work]] = {
    **shard_main.WORKS,
    "changed": _change,
    "list": _look,
    "member": _look,
    "transform": _transform,
}

if __name__ == "__main__":
    sys.exit(main(WORKS))
