"""The records of a benchmark's tars, divided into two inputs: pictures, and their labels."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.data import Data

__all__ = ["INPUTS", "part_inputs"]

INPUTS: Final[Mapping[str, str]] = {"images": ".jpg", "labels": ".json"}
"""The extension of the members in each input. An input is a directory beside the shards."""


def part_inputs(data: Data) -> None:
    """Make the inputs, unless they exist, with as many shards as the data. The labels of the images
    in a shard are in the shard at the mirrored position of the other input."""
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
