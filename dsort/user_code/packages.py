"""The versions of the packages that a process has loaded.

``importlib.metadata`` reads the metadata of all installed packages to find the package of a module:
0.25 s of processor time. Most packages are imported under their own name, and the names of their
metadata directories have their versions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["loaded_packages"]

_DIRECTORY = re.compile(r"([^-]+)-([^-]+)\.(?:dist-info|egg-info)")
_OTHERWISE = {"PIL": "pillow", "cv2": "opencv_python", "sklearn": "scikit_learn", "yaml": "pyyaml"}
_PLACES = ("site-packages", "dist-packages")


def loaded_packages(more: Iterable[str] = ()) -> dict[str, str]:
    """The versions of all packages of which a module is loaded, by name. ``more``: modules that may
    be loaded later."""
    tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    there = _installed()
    found, unknown = {}, []
    for top in [*tops, *more]:
        name, version = there.get(_normal(_OTHERWISE.get(top, top)), ("", ""))
        if version:
            found[name] = version
        elif _is_packaged(top):
            unknown.append(top)
    if unknown:
        from importlib import metadata

        known = metadata.packages_distributions()
        names = {name for top in unknown for name in known.get(top, ())}
        found |= {name: metadata.version(name) for name in names}
    return {name: found[name] for name in sorted(found, key=str.lower)}


def _installed() -> dict[str, tuple[str, str]]:
    """(name, version) of installed packages by normalised name; the first on the path if there are
    several."""
    found: dict[str, tuple[str, str]] = {}
    for place in sys.path:
        try:
            entries = sorted(entry.name for entry in Path(place or ".").iterdir())
        except OSError:
            continue
        for entry in entries:
            match = _DIRECTORY.fullmatch(entry)
            if match:
                found.setdefault(_normal(match[1]), (match[1], match[2]))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _is_packaged(top: str) -> bool:
    """Whether a module belongs to a package of its own, and is not a part of one with another
    name."""
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return not top.startswith("_") and any(each in file for each in _PLACES)
