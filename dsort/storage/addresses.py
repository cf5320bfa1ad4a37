"""From what a user writes to a bucket."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from dsort.errors import SpecError
from dsort.storage.base import Bucket
from dsort.storage.local import LocalBucket

__all__ = ["open_bucket"]

_FORMS_HINT = "write file:///absolute/path, or the name of a directory under the data root"


def open_bucket(uri: str, *, root: Path) -> Bucket:
    """The bucket that ``uri`` names; it need not exist yet.

    ``file:///data/images`` is that directory, with ``%20`` and the like decoded. A bare name such
    as ``images`` or ``images/train`` is a directory under ``root``, the data root, and ``.`` is
    ``root`` itself. ``SpecError`` for everything else.
    """
    if uri.startswith("file://"):
        host, slash, path = uri.removeprefix("file://").partition("/")
        if not slash or host not in ("", "localhost"):
            raise SpecError(
                f"bucket {uri}: file:// is followed by an absolute path", hint=_FORMS_HINT
            )
        directory = Path("/" + unquote(path, errors="surrogateescape"))
    elif ":" in uri:
        scheme = uri.partition(":")[0]
        raise SpecError(f"bucket {uri}: {scheme}: is not supported yet", hint=_FORMS_HINT)
    else:
        name = Path(uri)
        if not uri or name.is_absolute() or ".." in name.parts:
            raise SpecError(
                f"bucket {uri!r} is not the name of a directory under the data root",
                hint=f"write {name.absolute().as_uri()}" if uri else _FORMS_HINT,
            )
        directory = root / name
    if "\0" in str(directory):
        raise SpecError(f"bucket {uri!r} has a zero byte in it", hint=_FORMS_HINT)
    return LocalBucket(directory)
