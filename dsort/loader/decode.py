"""Decoders with the names of webdataset's, built on only Pillow and NumPy."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from dsort.errors import InputError, SpecError, SpecProblem
from dsort.installation import needing
from dsort.naming.names import shortened

__all__ = ["Decoder", "Sample", "decoder_of"]

Sample = dict[str, Any]
Decoder = Callable[[Sample], Sample]

PICTURES: Final = "bmp gif jpeg jpg pbm pgm png pnm ppm tif tiff webp"
# Pixels are uint8 for the names that end in 8, and float32 in 0..1 for the others. A shape is
# (height, width, 3), or (3, height, width) for torchrgb: an array, for ``torch.from_numpy``.
_EXTENSIONS: Final[Mapping[str, str]] = {
    "pil": PICTURES,
    "rgb": PICTURES,
    "rgb8": PICTURES,
    "torchrgb": PICTURES,
    "torchrgb8": PICTURES,
    "json": "json jsn",
    "txt": "txt text transcript",
    "cls": "cls cls2 index inx id",
    "npy": "npy",
}


def decoder_of(wanted: str | Sequence[str] | Decoder | None) -> Decoder | None:
    """The function that decodes a sample. ``wanted``: names, such as ``"rgb json"``, or a function
    that takes a sample and returns one. ``SpecError`` for an unknown name."""
    if wanted is None or callable(wanted):
        return wanted
    names = wanted.split() if isinstance(wanted, str) else list(wanted)
    by_extension: dict[str, Callable[[bytes], Any]] = {}
    for name in names:
        if name not in _EXTENSIONS:
            hint = f"there are {', '.join(_EXTENSIONS)}"
            raise SpecError([SpecProblem("decode", f"there is no decoder {name}", hint)])
        decode = _decoder_named(name)
        for extension in _EXTENSIONS[name].split():
            by_extension[extension] = decode
    return partial(_decoded, by_extension) if by_extension else None


def _decoded(by_extension: Mapping[str, Callable[[bytes], Any]], sample: Sample) -> Sample:
    for name, content in sample.items():
        extension = name.rpartition(".")[2]
        if extension not in by_extension or not isinstance(content, bytes):
            continue
        try:
            sample[name] = by_extension[extension](content)
        except (ValueError, OSError, RecursionError, SyntaxError, EOFError) as error:
            raise InputError(
                f"record {sample['__key__']} of {sample['__url__']}: its {name} cannot be decoded: "
                f"{shortened(str(error))}"
            ) from None
    return sample


def _decoder_named(name: str) -> Callable[[bytes], Any]:
    if name == "json":
        return json.loads
    if name == "txt":
        return bytes.decode
    if name == "cls":
        return int
    if name == "npy":
        return _array
    return _picture_decoder(name)


def _array(content: bytes) -> Any:
    return np.load(io.BytesIO(content))  # allow_pickle is False by default


def _picture_decoder(name: str) -> Callable[[bytes], Any]:
    with needing("loader", "Pillow"):
        from PIL import Image

    def pil(content: bytes) -> Any:
        try:
            with Image.open(io.BytesIO(content)) as picture:
                return picture.convert("RGB")
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from None

    if name == "pil":
        return pil
    is_torch, is_float = name.startswith("torch"), not name.endswith("8")

    def array(content: bytes) -> Any:
        pixels = np.asarray(pil(content))
        if is_torch:
            pixels = pixels.transpose(2, 0, 1)
        if is_float:
            return np.divide(pixels, np.float32(255), dtype=np.float32)
        return np.array(pixels)  # a copy: the array over Pillow's memory is read-only

    return array
