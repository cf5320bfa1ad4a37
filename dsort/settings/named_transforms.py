"""The transforms that a user has given names, in the directory of the user's settings.

Each version is a file of its own, ``transforms/NAME@3.json``, which never changes. A removed
version stays as a file without steps, so that its number is not used again. So ``NAME@3`` in a spec
means the same transform for ever, or none.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsort.errors import SpecError, StorageError
from dsort.naming.names import closest
from dsort.spec.transform import NAME_PATTERN, NamedTransform, parse_use

_FILE: Final = rf"({NAME_PATTERN})@([1-9][0-9]{{0,8}})\.json"
_BYTES_MAX: Final = 8 << 20  # users write at most 1 MiB; the stored form is longer


def local_transforms() -> LocalTransforms:
    """The transforms of this user."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    directory = Path(config) if config.startswith("/") else Path.home() / ".config"
    return LocalTransforms(directory / "dsort" / "transforms")


class LocalTransforms:
    """The transforms in ``directory``, which need not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, name: str, fields: Mapping[str, Any]) -> tuple[NamedTransform, bool]:
        """(the newest version of ``name``, which has the ``fields``; whether it is new).
        ``SpecError`` if ``fields`` are no transform."""
        from dsort.spec.load import read_transform  # loads all steps

        parse_use(name)
        kept, transform = read_transform(fields)
        versions = self._versions(name)
        newest = self._read(name, versions[-1]) if versions else None
        if newest is not None and newest.fields == kept:
            return newest, False
        version = versions[-1] + 1 if versions else 1
        added = NamedTransform(name, version, transform.steps_digest(), kept, time.time())
        document = {
            "name": name,
            "version": version,
            "digest": added.digest,
            "created_at": added.created_at,
            "transform": kept,
        }
        self._write(added.use, document, is_new=True)
        return added, True

    def find(self, name: str, version: int | None = None) -> NamedTransform:
        """Version ``version`` of ``name``; None: the newest version that is not removed.
        ``SpecError`` if there is none."""
        known = self._versions(name)
        wanted = known[::-1] if version is None else [version] if version in known else []
        for number in wanted:
            found = self._read(name, number)
            if found is not None:
                return found
        use = name if version is None else f"{name}@{version}"
        near = closest(name, {each for each, _ in self._files()} - {name})
        hint = f"did you mean {near}?" if near else "`dsort transforms ls` lists all transforms"
        raise SpecError(f"there is no transform {use} on this machine", hint=hint)

    def all(self) -> list[NamedTransform]:
        """All versions that are not removed, by name and version."""
        found = (self._read(name, version) for name, version in sorted(self._files()))
        return [each for each in found if each is not None]

    def remove(self, name: str, version: int | None = None) -> list[NamedTransform]:
        """Remove version ``version``, None: all. Returns the removed ones. ``SpecError`` if there
        is none."""
        numbers = self._versions(name) if version is None else [version]
        found = (self._read(name, each) for each in numbers)
        gone = [each for each in found if each is not None]
        if not gone:
            self.find(name, version)  # raises if it does not exist
        for each in gone:
            self._write(each.use, {"name": name, "version": each.version, "removed": True})
        return gone

    def _files(self) -> list[tuple[str, int]]:
        """(name, version) of all versions, removed ones included."""
        try:
            matches = [re.fullmatch(_FILE, each.name) for each in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from None
        return [(match[1], int(match[2])) for match in matches if match]

    def _versions(self, name: str) -> list[int]:
        return sorted(version for each, version in self._files() if each == name)

    def _read(self, name: str, version: int) -> NamedTransform | None:
        path = self._directory / f"{name}@{version}.json"
        try:
            with path.open("rb") as file:
                document = json.loads(file.read(_BYTES_MAX).decode())
            if document.get("removed"):
                return None
            fields, created_at = document["transform"], float(document["created_at"])
            found = NamedTransform(name, version, str(document["digest"]), fields, created_at)
            if not isinstance(fields, dict) or not found.digest:
                raise ValueError("it has no transform")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            hint = f"`dsort transforms rm {name}@{version}` removes it; then add it again"
            raise StorageError(f"{path} is damaged: {error}", hint=hint) from None
        return found

    def _write(self, use: str, document: Mapping[str, Any], *, is_new: bool = False) -> None:
        """Write the file as a whole, or not at all. ``is_new``: never replace an existing file."""
        path = self._directory / f"{use}.json"
        beside = self._directory / f".{use}.{os.getpid()}"
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            if is_new:
                os.link(beside, path)
                beside.unlink()
            else:
                beside.replace(path)
        except FileExistsError:
            beside.unlink()
            hint = "another process added it at this moment: try again"
            raise StorageError(f"there is a transform {use} already", hint=hint) from None
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> StorageError:
        return StorageError(
            f"transforms cannot be kept in {self._directory}: {error.strerror}",
            hint="make it a directory that is yours, or name another with XDG_CONFIG_HOME",
        )
