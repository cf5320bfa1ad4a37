"""The records of a benchmark's tars in two inputs: pictures here, what is said of them there."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.data import Data

__all__ = ["INPUTS", "part_inputs"]

INPUTS: Final[Mapping[str, str]] = {"images": ".jpg", "labels": ".json"}
"""The extension of what is in each input, which is a directory beside the shards."""


def part_inputs(data: Data) -> None:
    """Make the inputs, unless they are there: as many shards as the data have. The labels of a
    shard of images are in the shard on the other side."""
    done = data.root / "parted"
    if done.exists():
        return
    for name, extension in INPUTS.items():
        target = data.root / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        paths = data.paths if name == "images" else data.paths[::-1]
        for path, place in zip(paths, data.paths, strict=True):
            _take(path, target / place.name, extension)
    done.touch()


def _take(source: Path, target: Path, extension: str) -> None:
    with (
        tarfile.open(source) as read,
        tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as write,
    ):
        for member in read:
            if member.name.endswith(extension):
                write.addfile(member, read.extractfile(member))
