"""The page of a job as one HTML file: ``dsort show --html``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsort.cli import output
from dsort.cli.find import FoundJob
from dsort.errors import InputError, StorageError
from dsort.installation import is_part, missing_part
from dsort.storage.directory.os_errors import StorageErrors

__all__ = ["page_of", "write_page"]

STDOUT = "-"


def write_page(page: Mapping[str, Any], target: str, *, overwrite: bool, as_json: bool) -> None:
    """Write the page of a job to the file ``target``, ``-`` for standard output. ``as_json``: print
    the data of the page instead. ``StorageError`` if the file exists, without ``overwrite``."""
    if as_json:
        output.write_json(page)
        return
    if is_part():
        raise missing_part("dsort show --html", takes_a_service=False)
    from dsort.web.job_page import html

    text = html(page)
    if target == STDOUT:
        output.write(text.rstrip("\n"))
        return
    _write(Path(target), text, overwrite=overwrite)
    output.inform(f"wrote {output.printable(target)}")


def page_of(found: FoundJob) -> dict[str, Any]:
    """The data of the page of a job that has ended."""
    from dsort.web.job_page import page_of_manifest, page_of_report

    if not found.document:
        raise InputError(
            f"job {found.job_id} has not ended: it has neither a manifest nor a report",
            hint=f"see how far it is with `dsort show {found.job_id}`",
        )
    where = f"{found.document} in bucket {found.bucket.uri}"
    try:
        document = json.loads(found.read())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON document: {error}") from error
    uri = found.bucket.uri if found.in_place else ""
    try:
        make = page_of_manifest if found.finished else page_of_report
        return make(document, output_uri=uri)
    except InputError as error:
        raise InputError(f"{where}: {error.message}") from error


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    place = str(path.parent)
    with StorageErrors(f"write {path.name}", place):
        try:
            file = path.open("w" if overwrite else "x", encoding="utf-8")
        except FileExistsError:
            raise StorageError(
                f"{path} exists", hint="name another file, or replace it: --overwrite"
            ) from None
        with file:
            file.write(text)
