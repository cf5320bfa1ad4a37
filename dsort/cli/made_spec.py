"""For verbs that make a spec from their options: the shards that the job reads and writes, its
seed, and where it runs."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Struct

from dsort.cli import options, output
from dsort.cli.find import open_existing
from dsort.cli.parameters import Option
from dsort.cli.progress import ProgressStyle, make_reporter
from dsort.cli.remote import Submission, connected, is_remote, submit, write_report
from dsort.cli.run import read_spec, run_options, run_or_plan
from dsort.errors import MissingShardError, SpecError, SpecProblem
from dsort.reading.results import bucket_uri

SEEDS = 2**32

Seed = Annotated[
    str | None,
    Option(
        "--seed",
        metavar="SEED",
        help="The same seed gives the same order.  [default: a random seed, which is printed]",
    ),
]


def shuffle_with(seed: str | None) -> dict[str, Any]:
    """The ``algorithm`` of a spec that shuffles with ``seed``, or with a random one."""
    return {"kind": "shuffle", "seed": str(secrets.randbelow(SEEDS)) if seed is None else seed}


From = Annotated[
    str | None,
    Option(
        "--from",
        metavar="EXT",
        help="The suffix of the container to read.  [default: found from the names in SRC]",
    ),
]


def find_inputs(
    context: click.Context, src: str, source: str | None, root: Path | None
) -> tuple[str, int]:
    """(extension of the shards to read, number of these shards). Shards of one container that
    differ in their codec (``.jsonl``, ``.jsonl.gz``) are one input.

    ``source``: ``--from``. ``MissingShardError`` if there is no shard, ``SpecError`` if there are
    shards of several containers and ``source`` is None."""
    if src == "-":
        return _stream(source), 1
    if is_remote(context):
        with connected(context) as client:
            place = output.printable(src)
            names = (str(row["name"]) for row in client.data.shards(bucket_uri(src)))
            return _choose(place, names, source)
    bucket = open_existing(src, root=root)
    place = output.place(bucket.uri)
    try:
        return _choose(place, (info.name for info in bucket.list("")), source)
    except MissingShardError:
        from dsort.containers.registry import load_installed

        if not load_installed():
            raise
        return _choose(place, (info.name for info in bucket.list("")), source)


def suffix_of(text: str) -> str:
    """``text`` with its dot."""
    return text if text.startswith(".") else f".{text}"


def _stream(source: str | None) -> str:
    if source is None:
        raise SpecError(
            "a shard on standard input has no name that shows its container",
            hint="name the container with --from, as in --from tar",
        )
    return suffix_of(source)


def _choose(place: str, names: Iterable[str], source: str | None) -> tuple[str, int]:
    from dsort.containers.registry import check_supported, is_called
    from dsort.naming.names import VIEW_SUFFIX, archive_extension, is_internal

    counts = Counter(
        VIEW_SUFFIX if name.endswith(VIEW_SUFFIX) else archive_extension(name) or ""
        for name in names
        if not is_internal(name)
    )
    has_view, _ = counts.pop(VIEW_SUFFIX, 0), counts.pop("", 0)
    if source is not None:
        wanted = suffix_of(source)
        try:
            check_supported(wanted)
        except ValueError as error:
            raise SpecError([SpecProblem("--from", str(error))]) from None
    elif counts:
        wanted = _only_container(place, counts)
    else:
        raise MissingShardError(
            f"there is no shard in {place}",
            hint="it has a view: `dsort materialize` makes the shards"
            if has_view
            else "names of shards end in .tar, .jsonl, .parquet and the like; `dsort ls` lists the "
            "bucket, `dsort ingest` makes shards of loose files",
        )
    count = sum(number for each, number in counts.items() if is_called(f"x{each}", wanted))
    if not count:
        raise MissingShardError(f"there is no {wanted} shard in {place}")
    return wanted, count


def _only_container(place: str, counts: Counter[str]) -> str:
    """The extension of all shards, without a codec if their codecs differ."""
    from dsort.containers.registry import is_called, raw_extension

    for wanted in (*counts, *map(raw_extension, counts)):
        if all(is_called(f"x{each}", wanted) for each in counts):
            return wanted
    kinds = ", ".join(f"{count:,} {each}" for each, count in sorted(counts.items()))
    raise SpecError(
        f"{place} has shards of several containers: {kinds}", hint="choose one with --from"
    )


NAMES = "shard-%06d"
SHARD_SIZE = "1GB"


class OutputShards(Struct, frozen=True, kw_only=True):
    """The options of each verb that writes shards with names and sizes of its own."""

    names: Annotated[
        str, Option("--names", metavar="TEMPLATE", help="The names of output shards.")
    ] = NAMES
    shard_size: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help=f"The bytes of payload at which an output shard closes.  [default: {SHARD_SIZE}]",
        ),
    ] = None
    shard_records: Annotated[
        int | None,
        Option(metavar="N", help="The number of records in an output shard.", min=1),
    ] = None
    shards: Annotated[
        int | None,
        Option("--shards", metavar="N", help="The number of output shards.", min=1),
    ] = None
    split: Annotated[
        str | None,
        Option(
            metavar="NAME=PART,...",
            help="Split the records by shares: train=0.9,val=0.1 writes to DST/train and DST/val.",
        ),
    ] = None

    def fields(self, dst: str, *, count: int | None = None) -> dict[str, Any]:
        """The fields of a spec. ``count``: the number of shards, used if no option sets a size or a
        number. A shard on standard output has no name."""
        sizes = {
            "output_shard_size": self.shard_size,
            "output_shard_records": self.shard_records,
            "output_shard_count": self.shards,
        }
        ends = {field: value for field, value in sizes.items() if value is not None}
        if not ends and dst != "-":
            ends = (
                {"output_shard_size": SHARD_SIZE}
                if count is None
                else {"output_shard_count": count}
            )
        named = {} if dst == "-" and self.names == NAMES else {"output_format": self.names}
        if self.split is None:
            return {**named, **ends}
        if "{split}" not in self.names:
            named["output_format"] = f"{{split}}/{self.names}"
        return {**named, **ends, "outputs": _splits(self.split)}


def _splits(text: str) -> list[dict[str, object]]:
    """The ``outputs`` of a spec for a text like ``train=0.9,val=0.1``."""
    found: list[dict[str, object]] = []
    for part in text.split(","):
        name, equals, fraction = (each.strip() for each in part.partition("="))
        try:
            share = float(fraction)
        except ValueError:
            share = 0.0
        found.append({"name": name, "fraction": share})
        if not (name and equals and 0 < share <= 1):
            problem = SpecProblem(
                "--split", f"{part.strip()!r} is no NAME=PART", "train=0.9,val=0.1"
            )
            raise SpecError([problem])
    return found


class MadeJob(options.RunArguments, frozen=True, kw_only=True):
    """The options of each verb that makes a spec: where and how the job runs."""

    root: options.Root = None
    overwrite: options.Overwrite = False
    remove_stale: options.RemoveStale = False
    force: options.Force = False
    dry_run: Annotated[bool, Option("--dry-run", help="Read and plan, but write nothing.")] = False
    print_spec: Annotated[
        bool,
        Option(
            "--print-spec", help="Print the job spec as YAML, for `dsort start -f`; run nothing."
        ),
    ] = False
    progress: options.ProgressOption = "auto"
    as_json: options.AsJson = False
    verbose: options.Verbose = False
    wait: options.WaitOption = False
    priority: options.Priority = 0
    labels: options.Labels = None
    server: options.Server = None
    token_file: options.TokenFile = None
    local: options.Local = False
    debug: options.Debug = False


def run_made_spec(
    context: click.Context, fields: Mapping[str, Any], how: MadeJob, *, random_seed: bool = False
) -> None:
    """Run the job that ``fields`` describe, here or at a service, and put its report on stdout.
    ``random_seed``: the user did not choose the seed; it is printed once the spec is checked."""
    if how.overwrite:
        fields = {**fields, "overwrite": True}
    if how.remove_stale:
        fields = {**fields, "remove_stale": True}
    seed = fields["algorithm"]["seed"] if random_seed else ""
    if how.print_spec:
        _inform_of_seed(seed)
        _print_spec(fields, as_json=how.as_json)
        return
    style: ProgressStyle = how.progress
    if is_remote(context):
        _inform_of_seed(seed)
        asked = Submission(fields, how.priority, how.labels or (), how.dry_run)
        submit(
            context, asked, wait=how.wait, progress=style, as_json=how.as_json, verbose=how.verbose
        )
        return
    as_given = run_options(how, root=how.root, overwrite=how.overwrite, force=how.force)
    with make_reporter(style) as reporter:
        spec = read_spec(json.dumps(fields), None, None, warn=reporter.warn)
        _inform_of_seed(seed)
        dry_run, verbose = how.dry_run, how.verbose
        report = run_or_plan(spec, as_given, reporter, dry_run=dry_run, verbose=verbose)
    write_report(report, as_json=how.as_json, beside_shard=spec.output_bck.is_stream)


def _inform_of_seed(seed: str) -> None:
    if seed:
        output.inform(f"seed {seed} (--seed {seed} gives this order again)")


def _print_spec(fields: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.write_json(dict(fields))
        return
    import yaml

    output.write(yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True).rstrip("\n"))
