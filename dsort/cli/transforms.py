"""``dsort transforms``: transforms that have names, of this user or of a service.

This group is separate from the verb ``dsort transform``, whose first argument is a bucket: a bucket
may be called ``add``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import click

from dsort.cli import options, output
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, is_remote
from dsort.cli.transform import read_definition

if TYPE_CHECKING:
    from dsort.spec.named import NamedTransform

__all__ = ["add", "ls", "rm", "show"]

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
        output.inform("nothing is new: its newest version has these steps")
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
    if as_json:
        output.write_json(views)
        return
    if not views:
        output.inform("there is no transform")
        return
    rows = []
    for each in views:
        use = f"{each['name']}@{each['version']}"
        row = (
            use,
            str(each["created_at"])[:10],
            each["created_by"] or "-",
            " ".join(each["kinds"]),
        )
        rows.append([output.printable(cell) for cell in row])
    output.write(output.table(("TRANSFORM", "ADDED", "BY", "STEPS"), rows))


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
    from dsort.spec.named import parse_use

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
    given again."""
    if is_remote(context):
        with connected(context) as client:
            client.transforms.remove(name)
        _write_removed([name], as_json=as_json)
        return
    from dsort.settings.named_transforms import local_transforms
    from dsort.spec.named import parse_use

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
