"""``dsort gen-shards``: writes synthetic shards."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from dsort.cli import options, output
from dsort.cli.find import open_argument
from dsort.cli.parameters import Argument, Option
from dsort.cli.progress import make_reporter
from dsort.errors import SpecError, SpecProblem

SHARDS_MAX = 100_000
FIRST_RANGE = re.compile(r"[{]|%[0-9]*d|@[0-9]")


def gen_shards(
    target: Annotated[
        str,
        Argument(
            metavar="BUCKET/TEMPLATE.EXT",
            help="The bucket and the names of the shards, as in 'images/samples-{00..18}.tar'.",
        ),
    ],
    records: Annotated[
        int, Option("--fcount", metavar="N", min=0, help="The number of records in each shard.")
    ] = 5,
    member_size: Annotated[
        str, Option("--fsize", metavar="SIZE", help="The size of each member, as in 100KB.")
    ] = "1024",
    extensions: Annotated[
        str | None,
        Option(
            "--fext",
            metavar="EXT,..",
            help="The extensions of the members, as in jpg,cls. Each record has one member "
            "for each extension.  [default: test; json or txt for containers of lines]",
        ),
    ] = None,
    tar_format: Annotated[
        Literal["ustar", "gnu", "pax"],
        Option(
            "--tform",
            metavar="FORM",
            case_sensitive=False,
            help="The dialect of tar: ustar, gnu or pax.",
        ),
    ] = "ustar",
    seed: Annotated[
        str, Option("--seed", metavar="TEXT", help="The same seed gives the same bytes.")
    ] = "0",
    overwrite: options.Overwrite = False,
    root: options.Root = None,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write test shards: random bytes under unique keys."""
    from dsort.containers.registry import container_of
    from dsort.job.synthetic import ShardRecipe, extensions_of, generate_shards

    bucket_uri, names = _split_target(target)
    recipe = ShardRecipe(
        records=records,
        member_bytes=options.size_bytes(member_size, "--fsize"),
        extensions=() if extensions is None else _extensions(extensions),
        tar_format=tar_format,
        seed=seed,
    )
    bucket = open_argument(bucket_uri, root=root)
    with make_reporter(progress) as reporter:
        written = generate_shards(bucket, names, recipe, overwrite=overwrite, on_event=reporter)
    document = {
        "bucket": bucket.uri,
        "shards": names,
        "records": records * len(names),
        "members": records * len(names) * len(extensions_of(recipe, container_of(names[0]))),
        "file_bytes": written,
        "seed": seed,
    }
    shards, total = output.count(len(names), "shard"), output.count(records * len(names), "record")
    text = f"wrote {shards}, {total}, {output.size(written)} to {output.place(bucket.uri)}"
    output.write_either(document, text, as_json=as_json)


def _split_target(target: str) -> tuple[str, list[str]]:
    """(bucket, names): the bucket ends at the last slash before the template's first range."""
    from dsort.naming.names import check_output_name
    from dsort.naming.templates import parse_template

    first_range = FIRST_RANGE.search(target)
    cut = target.rfind("/", 0, first_range.start() if first_range else None)
    bucket, text = target[: max(cut, 0)], target[cut + 1 :]
    if not bucket or bucket.endswith(":/"):
        raise SpecError(
            f"{target!r} names no bucket",
            hint="write BUCKET/TEMPLATE.tar, as in 'images/samples-{00..18}.tar' or "
            "'s3://images/train/samples-{00..18}.tar'",
        )
    _check_written(target, text)
    names = [text]
    try:
        if first_range:
            template = parse_template(text)
            if template.count is None or template.count > SHARDS_MAX:
                raise SpecError(
                    f"template {text!r} stands for more than {SHARDS_MAX:,} shards",
                    hint="give it an end, as in 'samples-{00..18}.tar'",
                )
            names = list(template)
        check_output_name(names[0])
    except ValueError as error:
        raise SpecError(str(error)) from error
    return bucket, names


def _check_written(target: str, text: str) -> None:
    from dsort.containers.registry import check_supported, check_writable, container_of
    from dsort.naming.names import archive_extension, suggested_extension

    extension = archive_extension(text)
    if extension is None:
        raise SpecError(
            f"{target!r} ends in no archive extension",
            hint=suggested_extension(text) or "as in .tar, .tgz, .zip, .jsonl or .parquet",
        )
    try:
        check_supported(extension)
        check_writable(extension)
    except ValueError as error:
        raise SpecError(f"{target!r}: {error}") from None
    container = container_of(extension)
    makes_all = container.packed is not None or container.is_columnar
    if not makes_all or container.index is not None:
        raise SpecError(
            f"{target!r}: gen-shards writes no {extension} shards, which need a file beside them",
            hint="write tars, and convert them: dsort convert",
        )


def _extensions(text: str) -> tuple[str, ...]:
    extensions = tuple("." + each.strip().lstrip(".") for each in text.split(","))
    for each in extensions:
        if each == "." or "/" in each or extensions.count(each) > 1:
            raise SpecError(
                [
                    SpecProblem(
                        "--fext", f"{text!r} is no list of different extensions", "as in jpg,cls"
                    )
                ]
            )
    return extensions
