"""``dsort ingest``: a job that makes shards of loose files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from msgspec import Struct

from dsort.cli.made_spec import MadeJob, OutputShards, Seed, run_made_spec, shuffle_with
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import is_remote
from dsort.errors import DsortError, ObjectNotFoundError, SpecError, SpecProblem
from dsort.reading.results import bucket_uri

_TEMPLATE = re.compile(r"%[0-9]*d|[{}]")
_FIELD = re.compile(r"\bingest\.(layout|key|dots|unusable): (\w+)")
_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]*)=(.+)", re.DOTALL)


class LooseFiles(Struct, frozen=True, kw_only=True):
    """The options that select loose files and decide how they become records."""

    layout: Annotated[
        Literal["files", "folders", "metadata"],
        Option(
            help="files: files with the same key become one record. folders: the first "
            "directory of a name is the class, and a member .cls holds the number of the class. "
            "metadata: metadata.csv, .jsonl or .parquet describes the files."
        ),
    ] = "files"
    key: Annotated[
        Literal["path", "name", "joined"],
        Option(
            help="The part of a file's name that is the record key: the whole path, the name "
            "after the last slash, or the path joined without slashes."
        ),
    ] = "path"
    key_pattern: Annotated[
        str | None,
        Option(
            metavar="REGEX",
            help="In place of --key: a regular expression whose first group is the record key.",
        ),
    ] = None
    dots: Annotated[
        Literal["first", "last"] | None,
        Option(
            help="The dot of a file's name at which the extension begins.  [default: first with "
            "--layout files, else last]",
        ),
    ] = None
    archives: Annotated[
        bool, Option("--archives", help="Read the files inside tars, in place of the tars.")
    ] = False
    extensions: Annotated[
        list[str] | None,
        Option(
            "--ext", metavar="EXT", help="Read only files with this extension; may be repeated."
        ),
    ] = None
    recipe: Annotated[
        str | None,
        Option(
            metavar="FILE", help="A file with the name and the source of one member in each line."
        ),
    ] = None
    pipes: Annotated[
        bool, Option("--pipes", help="Run the programs that the recipe names with pipe:.")
    ] = False
    class_map: Annotated[
        str | None,
        Option(metavar="FILE", help="With --layout folders: a file with the number of each class."),
    ] = None
    unusable: Annotated[
        Literal["abort", "drop"],
        Option(
            help="The policy for files that cannot be members, such as files without an extension."
        ),
    ] = "abort"

    def fields(self, *, local: bool) -> dict[str, object]:
        """The field ``ingest`` of a spec. ``local``: paths are relative to the current
        directory."""
        located = _location if local else str
        extensions = [text.removeprefix(".") for text in self.extensions or ()]
        given = {
            "layout": self.layout,
            "key": self.key,
            "key_pattern": self.key_pattern,
            "dots": self.dots,
            "archives": self.archives,
            "extensions": extensions,
            "recipe": self.recipe and located(self.recipe),
            "pipes": self.pipes,
            "class_map": self.class_map and located(self.class_map),
            "unusable": self.unusable,
        }
        return {name: value for name, value in given.items() if value}


def ingest(
    context: click.Context,
    places: Annotated[
        list[str],
        Argument(
            metavar="SRC... DST",
            help="Trees of files, each as PATH or NAME=PATH, and then the bucket for the shards.",
        ),
    ],
    seed: Seed = None,
    sort: Annotated[
        bool, Option("--sort", help="Sort the records by key; do not shuffle.")
    ] = False,
    *,
    files: LooseFiles,
    shards: OutputShards,
    how: MadeJob,
) -> None:
    """Make shuffled shards from loose files. Each file becomes a member of one record.

    \b
    Examples:
      dsort ingest ./imagenet/train s3://data/train --layout folders
      dsort ingest photos shards --split train=0.9,val=0.1
      dsort ingest images=./jpg labels=./txt pets --names "pets-%05d.tar" \\
          --shard-records 1000
    """
    *sources, dst = places
    if not sources:
        raise SpecError("there is a SRC, but no DST", hint="dsort ingest SRC... DST")
    if _TEMPLATE.search(dst):
        hint = "name the bucket as DST, and the shards with --names"
        raise SpecError([SpecProblem("DST", f"{dst} is a template of names", hint)])
    fields: dict[str, Any] = {
        **_sources(sources),
        "output_bck": bucket_uri(dst),
        **shards.fields(dst),
        "ingest": files.fields(local=not is_remote(context)),
        "algorithm": {"kind": "alphanumeric"} if sort else shuffle_with(seed),
    }
    with _hinting_at_options(sources):
        run_made_spec(context, fields, how, random_seed=seed is None and not sort)


@contextmanager
def _hinting_at_options(sources: list[str]) -> Iterator[None]:
    """Make hints name the options of the command, and not the fields of a spec. ``sources``: the
    SRC arguments, for the hint about a tree that does not exist."""
    try:
        yield
    except DsortError as error:
        error.hint = _FIELD.sub(r"--\1 \2", error.hint)
        for each in sources if isinstance(error, ObjectNotFoundError) else ():
            if "," in each and Path(each).name in error.message:
                error.hint = f"a comma does not separate trees: write {' '.join(_apart(each))}"
        raise


def _apart(source: str) -> list[str]:
    """The trees that ``source`` names, if a comma separates trees. ``a/b,c``: ``a/b`` and
    ``a/c``."""
    first, *others = source.split(",")
    folder = first.rpartition("/")[0]
    inside = f"{folder}/" if folder else ""
    return [first, *(each if "/" in each else f"{inside}{each}" for each in others)]


def _location(text: str) -> str:
    """An absolute path, or a URL."""
    return text if "://" in text else str(Path(text).absolute())


def _sources(texts: list[str]) -> dict[str, object]:
    """The fields of a spec that name its inputs. An argument is PLACE, or NAME=PLACE. Of several
    places without a NAME, the last part of the path is the name."""
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
