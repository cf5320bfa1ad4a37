"""``dsort transform``, a job that changes the records of a bucket and keeps its shards; and
``dsort transforms``, the transforms that have names, of this user or of a service.

The group is separate from the verb, whose first argument is a bucket: a bucket may be called
``add``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Struct

from dsort.cli import options, output
from dsort.cli.made_spec import From, MadeJob, find_inputs, run_made_spec, suffix_of
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, is_remote
from dsort.errors import SpecError, SpecProblem
from dsort.reading.results import bucket_uri

if TYPE_CHECKING:
    from dsort.spec.transform import NamedTransform

STORE_VERBS = ("add", "ls", "show", "rm")


class Change(Struct, frozen=True, kw_only=True):
    """The options that define the change of records. A command has exactly one of ``use``,
    ``python`` and ``file``."""

    use: Annotated[
        str | None,
        Option(
            metavar="NAME[@N]",
            help="A named transform: see `dsort transforms`.",
        ),
    ] = None
    python: Annotated[
        str | None,
        Option(
            metavar="PKG:FN",
            help="A Python function that gets a sample (a dict) and returns a sample, or None "
            "to leave the sample out.",
        ),
    ] = None
    file: Annotated[
        str | None,
        Option(
            "-f",
            "--steps",
            metavar="FILE",
            help="A file with the steps, as JSON or YAML.",
        ),
    ] = None
    ext: Annotated[
        list[str] | None,
        Option(
            "--rename-ext",
            metavar="OLD:NEW",
            help="With --python: give members another extension; may be repeated.",
        ),
    ] = None

    def steps(self, *, local: bool) -> dict[str, Any]:
        """The field ``transform`` of the spec."""
        given = {"--use": self.use, "--python": self.python, "--steps": self.file}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            found = f"has {' and '.join(named)}" if named else "has none of " + _one_of(given)
            hint = "exactly one of them defines the change of the records"
            raise SpecError(f"dsort transform {found}", hint=hint)
        if self.ext and self.python is None:
            hint = "the step `fields` renames members"
            raise SpecError([SpecProblem("--rename-ext", "needs --python", hint)])
        if self.use is not None:
            return {"use": self.use}
        if self.file is not None:
            return read_definition(self.file, local=local)
        steps: list[dict[str, Any]] = [{"map": {"python": self.python}}]
        if self.ext:
            steps.append({"fields": {"rename": dict(map(_renamed, self.ext))}})
        return {"steps": steps}


class InputShards(Struct, frozen=True, kw_only=True):
    """The options that select the shards to read."""

    template: Annotated[
        str | None,
        Option(
            metavar="TEMPLATE",
            help="Read only these shards, as in train-{000..099}.",
        ),
    ] = None
    source: From = None

    def fields(self, context: click.Context, src: str, root: Path | None) -> dict[str, Any]:
        """The fields of a spec."""
        fields: dict[str, Any] = {}
        if self.template is not None:
            fields["input_format"] = {"template": self.template}
        if self.source is not None:
            fields["input_extension"] = suffix_of(self.source)
        elif self.template is None:
            fields["input_extension"], _ = find_inputs(context, src, None, root)
        return fields


def transform(
    context: click.Context,
    src: Annotated[str, Argument(metavar="SRC", help="The bucket to read.")],
    dst: Annotated[str | None, Argument(metavar="DST", help="The bucket to write.")] = None,
    *,
    change: Change,
    shards: InputShards,
    how: MadeJob,
) -> None:
    """Change the records of a bucket. Each shard of SRC becomes one shard of the same name in DST.

    \b
    Examples:
      dsort transform images small --use resize@3
      dsort transform images arrays --python decode:to_array --rename-ext jpg:npy
      dsort transform s3://data/raw s3://data/clean -f clean.yaml --overwrite
    """
    if change == Change() and src in STORE_VERBS:  # the user means the list of transforms
        text = f'"{src}" would be a bucket here'
        raise SpecError([SpecProblem("SRC", text, f"did you mean `dsort transforms {src}`?")])
    if "-" in (src, dst):
        hint = "`dsort start - - -f SPEC` reads and writes a stream, with transform in SPEC"
        raise SpecError("dsort transform changes shards of a bucket, and no stream", hint=hint)
    if dst is None:
        raise SpecError(
            [SpecProblem("DST", "is missing", "shards keep their names: name a bucket")]
        )
    fields: dict[str, Any] = {
        "input_bck": bucket_uri(src),
        "output_bck": bucket_uri(dst),
        "keep_shards": True,
        "algorithm": {"kind": "none"},
        "transform": change.steps(local=not is_remote(context)),
        **shards.fields(context, src, how.root),
    }
    run_made_spec(context, fields, how)


def read_definition(source: str, *, local: bool) -> dict[str, Any]:
    """The steps in a file, in standard input (``-``), or in the text itself. ``local``: paths in
    the file are relative to the file; a service could not open them anyway."""
    from dsort.spec.load import anchor_steps, read_fields

    read, directory = read_fields(source, stdin=sys.stdin)
    fields = dict(read)
    if "transform" in fields and len(fields) == 1 and isinstance(fields["transform"], dict):
        fields = dict(fields["transform"])
    if local and directory is not None:
        anchor_steps(fields, directory)
    return fields


def _one_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"


def _renamed(text: str) -> tuple[str, str]:
    """Both sides of a text like ``jpg:npy``."""
    old, _, new = (each.removeprefix(".") for each in text.partition(":"))
    if not (old and new):
        raise SpecError(
            [SpecProblem("--rename-ext", f"{text!r} is no pair of extensions", "jpg:npy")]
        )
    return old, new


Name = Annotated[
    str,
    Argument(
        metavar="NAME",
        help="The name of the transform: letters, digits and . _ -.",
    ),
]
NameAndVersion = Annotated[
    str,
    Argument(
        metavar="NAME[@N]",
        help="A transform, or one version of a transform.",
    ),
]


def add(
    context: click.Context,
    name: Name,
    file: Annotated[
        str,
        Option(
            "-f",
            "--steps",
            metavar="FILE",
            help="The steps of the transform, as in `transform` of a spec: a JSON or YAML "
            "file, `-` for stdin.",
        ),
    ],
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Add a transform under a new name, or the next version of a named transform. Versions never
    change.

    \b
    Examples:
      dsort transforms add resize -f resize.yaml
      dsort transform images small --use resize@1
    """
    remote = is_remote(context)
    fields = read_definition(file, local=not remote)
    if remote:
        with connected(context) as client:
            view, is_new = client.transforms.put(name, fields)
    else:
        from dsort.settings.named_transforms import local_transforms

        added, is_new = local_transforms().add(name, fields)
        view = _view(added)
    if as_json:
        output.write_json(view)
        return
    if not is_new:
        output.inform("nothing is new: the newest version has these steps already")
    output.write(f"{view['name']}@{view['version']}")


def ls(
    context: click.Context,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """List transforms with their versions."""
    if is_remote(context):
        with connected(context) as client:
            views = list(client.transforms.list())
    else:
        from dsort.settings.named_transforms import local_transforms

        views = [_view(each) for each in local_transforms().all()]
    rows = (
        (
            f"{each['name']}@{each['version']}",
            str(each["created_at"])[:10],
            each["created_by"] or "-",
            " ".join(each["kinds"]),
        )
        for each in views
    )
    header = ("TRANSFORM", "ADDED", "BY", "STEPS")
    output.write_rows(views, header, rows, as_json=as_json, empty="there is no transform")


def show(
    context: click.Context,
    name: NameAndVersion,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Print a transform: version N, or without @N the newest version. The output is always JSON,
    with --json and without."""
    if is_remote(context):
        with connected(context) as client:
            output.write_json(client.transforms.get(name))
        return
    from dsort.settings.named_transforms import local_transforms
    from dsort.spec.transform import parse_use

    output.write_json(_view(local_transforms().find(*parse_use(name))))


def rm(
    context: click.Context,
    name: NameAndVersion,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Remove a transform, or one version of a transform. The number of a removed version is not
    used again."""
    if is_remote(context):
        with connected(context) as client:
            client.transforms.remove(name)
        _write_removed([name], as_json=as_json)
        return
    from dsort.settings.named_transforms import local_transforms
    from dsort.spec.transform import parse_use

    gone = local_transforms().remove(*parse_use(name))
    _write_removed([each.use for each in gone], as_json=as_json)


def _write_removed(names: list[str], *, as_json: bool) -> None:
    if as_json:
        output.write_json([{"transform": name, "removed": True} for name in names])
    else:
        output.inform(f"{', '.join(names)} removed")


def _view(each: NamedTransform) -> dict[str, Any]:
    """The transform in the form that a service returns."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(each.created_at))
    return {
        "name": each.name,
        "version": each.version,
        "digest": each.digest,
        "created_at": at,
        "created_by": each.owner,
        "kinds": [kind for step in each.fields["steps"] for kind in step],
        "transform": dict(each.fields),
    }
