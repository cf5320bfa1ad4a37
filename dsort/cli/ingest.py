"""``dsort ingest``: a job that makes shards of loose files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dsort.cli import options
from dsort.cli.find import bucket_uri
from dsort.cli.made_spec import run_made_spec
from dsort.cli.run import run_options
from dsort.errors import DsortError, SpecError, SpecProblem

__all__ = ["ingest"]

NAMES = "shard-{n:06d}"
SIZE = "1GB"
_TEMPLATE = re.compile(r"[%{@]")
_FIELD = re.compile(r"\bingest\.(layout|key|dots|unusable): (\w+)")
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """Which files go in, and what becomes of them."""

    layout: Annotated[
        Literal["files", "folders", "metadata"],
        typer.Option(
            help="folders: the first directory of a name is a class, which .cls numbers. metadata: "
            "metadata.csv, .jsonl or .parquet describes the files."
        ),
    ] = "files"
    key: Annotated[
        Literal["path", "name", "joined"],
        typer.Option(help="What of a file's name is the key of its record."),
    ] = "path"
    key_pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="The key is the first group of it, in place of --key."),
    ] = None
    dots: Annotated[
        Literal["first", "last"] | None,
        typer.Option(help="At which dot extensions begin. Default: first; last for folders."),
    ] = None
    archives: Annotated[
        bool, typer.Option("--archives", help="Look into tars: what is in them are the files.")
    ] = False
    extensions: Annotated[
        list[str] | None,
        typer.Option("--ext", metavar="EXT", help="Only files with it go in; may be repeated."),
    ] = None
    recipe: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Lines of a member's name and what is in it."),
    ] = None
    pipes: Annotated[
        bool, typer.Option("--pipes", help="Run the programs that pipe: of the recipe names.")
    ] = False
    class_map: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With folders: which number each class has."),
    ] = None
    unusable: Annotated[
        Literal["abort", "drop"],
        typer.Option(help="What becomes of files that can be no members, as without extension."),
    ] = "abort"

    def fields(self) -> dict[str, object]:
        """``ingest`` of a spec."""
        extensions = [text.removeprefix(".") for text in self.extensions or ()]
        given = {
            "layout": self.layout,
            "key": self.key,
            "key_pattern": self.key_pattern,
            "dots": self.dots,
            "archives": self.archives,
            "extensions": extensions,
            "recipe": _location(self.recipe),
            "pipes": self.pipes,
            "class_map": _location(self.class_map),
            "unusable": self.unusable,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledShards:
    """What shards hold, and in which order."""

    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Payload of a shard. Default: {SIZE}.")
    ] = None
    shard_records: Annotated[
        int | None, typer.Option(metavar="N", help="Records of a shard.", min=1)
    ] = None
    seed: Annotated[str | None, typer.Option(metavar="SEED", help="Of the shuffle.")] = None
    sort: Annotated[
        bool, typer.Option("--sort", help="In the order of keys, and not shuffled.")
    ] = False

    def fields(self) -> dict[str, object]:
        """The fields of a spec."""
        order = {"kind": "alphanumeric"} if self.sort else {"kind": "shuffle", "seed": self.seed}
        order = {name: value for name, value in order.items() if value is not None}
        given = {"output_shard_size": self.shard_size, "output_shard_records": self.shard_records}
        given = {name: value for name, value in given.items() if value is not None}
        return {"algorithm": order, **(given or {"output_shard_size": SIZE})}


@options.grouped
def ingest(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC... DST",
            help="Trees of files, each as PATH or NAME=PATH, and where shards go: a bucket, or "
            "BUCKET/TEMPLATE.",
        ),
    ],
    root: options.Root = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan, but write nothing.")] = False,
    overwrite: options.Overwrite = False,
    *,
    files: LooseFiles,
    shards: ShuffledShards,
    run: options.RunArguments,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Make shuffled shards of loose files, each file a member of one record.

    \b
    Examples:
      dsort ingest ./imagenet/train s3://data/train --layout folders
      dsort ingest images=./jpg labels=./txt "shards/pets-%05d.tar" \\
          --shard-records 1000
    """
    if len(places) < 2:
        raise SpecError("there is a SRC, but no DST", hint="dsort ingest SRC... DST")
    bucket, names = _destination(places[-1])
    fields: dict[str, Any] = {
        **_sources(places[:-1]),
        "output_bck": bucket_uri(bucket),
        "output_format": names,
        "ingest": files.fields(),
        **shards.fields(),
    }
    as_given = run_options(run, root=root, overwrite=overwrite)
    with _hinting_at_options():
        run_made_spec(
            fields,
            None,
            None,
            as_given,
            overwrite=overwrite,
            verbose=verbose,
            dry_run=dry_run,
            progress=progress,
            as_json=as_json,
        )


@contextmanager
def _hinting_at_options() -> Iterator[None]:
    """Have hints name the options of the command, and not the fields of a spec."""
    try:
        yield
    except DsortError as error:
        error.hint = _FIELD.sub(r"--\1 \2", error.hint)
        raise


def _location(text: str | None) -> str | None:
    """A path from here, or a URL."""
    return text if text is None or "://" in text else str(Path(text).absolute())


def _destination(text: str) -> tuple[str, str]:
    """(bucket, template of names) of where shards go."""
    bucket, slash, last = text.rpartition("/")
    if not _TEMPLATE.search(last):
        return text, NAMES
    if not slash:
        raise SpecError([SpecProblem("DST", f"{text} names no bucket", "write BUCKET/TEMPLATE")])
    return bucket or "/", last


def _sources(texts: list[str]) -> dict[str, object]:
    """The input of a spec, or its inputs, which have the names that are given, or their own."""
    named = [_NAMED.fullmatch(text) for text in texts]
    if len(texts) == 1 and named[0] is None:
        return {"input_bck": bucket_uri(texts[0])}
    inputs = []
    for text, match in zip(texts, named, strict=True):
        name, place = (match[1], match[2]) if match else ("", text)
        last = place.rstrip("/").rpartition("/")[2]
        name = name or re.sub(r"[^A-Za-z0-9_-]", "_", last)
        inputs.append({"name": name, "input_bck": bucket_uri(place)})
    return {"inputs": inputs}
