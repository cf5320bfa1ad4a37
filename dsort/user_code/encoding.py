"""Converts the content of members to objects and back, by extension. The decoders have the names of
webdataset's decoders.

Functions that need a library (NumPy, Pillow, Torch) import it when they are first called.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

JPEG_QUALITY: Final = 95
_PIL_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "ppm": "PPM",
    "bmp": "BMP",
    "tif": "TIFF",
    "tiff": "TIFF",
    "gif": "GIF",
}
_JSON = ("json", "jsn")


class EncodingError(TypeError):
    """A value cannot be a member with that extension."""


def _image(data: bytes, mode: str) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.load()  # no copy, which would take a third as long as decoding
    return image.convert(mode) if mode not in ("", image.mode) else image


def _rgb8(data: bytes) -> Any:
    import numpy as np

    return np.asarray(_image(data, "RGB"))


def _rgb(data: bytes) -> Any:
    return _rgb8(data).astype("float32") / 255.0


def _torchrgb(data: bytes) -> Any:
    import torch

    return torch.from_numpy(_rgb(data)).permute(2, 0, 1)


def _npy(data: bytes) -> Any:
    import numpy as np

    return np.load(io.BytesIO(data))


def _npz(data: bytes) -> Any:
    import numpy as np

    with np.load(io.BytesIO(data)) as arrays:
        return {name: arrays[name] for name in arrays.files}


DECODERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "bool": lambda data: bool(int(data)),
    "bytes": lambda data: data,
    "float": lambda data: float(data),
    "int": lambda data: int(data),
    "json": lambda data: json.loads(data),
    "npy": _npy,
    "npz": _npz,
    "pil": lambda data: _image(data, ""),
    "pilrgb": lambda data: _image(data, "RGB"),
    "rgb": _rgb,
    "rgb8": _rgb8,
    "torchrgb": _torchrgb,
    "txt": lambda data: data.decode(),
}
"""The decoders that ``decode`` may name."""


def encoded(extension: str, value: Any) -> bytes:
    """``value`` as the content of a member with that extension. ``EncodingError`` for a value of
    any other type."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    kind = extension.rpartition(".")[2].lower()
    if kind in _JSON and isinstance(value, (dict, list, int, float, bool, type(None))):
        return json.dumps(value, ensure_ascii=False).encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    if kind in ("npy", "npz", *_PIL_FORMATS):
        found = _array_or_image(kind, value)
        if found is not None:
            return found
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and getattr(value, "shape", None) == () and value.dtype.kind in "iu":
        return str(int(value)).encode()
    raise EncodingError(
        f"its member .{extension} is of type {type(value).__name__}, which cannot be stored: "
        "return bytes"
    )


def encoded_cell(column: str, value: Any) -> bytes:
    """``value``, which contains no None, as the content of a cell of that column: numbers and texts
    directly, other values in JSON. ``EncodingError`` if JSON cannot hold the value."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of NumPy
        value = value.tolist()
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, (int, float)):
        return repr(value).encode()
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise EncodingError(f"its column {column} cannot be stored: {error}") from None


def _array_or_image(kind: str, value: Any) -> bytes | None:
    """``value`` as a file of this kind; None if it is not an array or image for this kind."""
    if kind in _PIL_FORMATS and hasattr(value, "save") and hasattr(value, "getbands"):
        return _saved(value, kind)
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a tensor of Torch
        value = value.detach().cpu().numpy()
    if kind == "npz" and isinstance(value, Mapping):
        import numpy as np

        stored = io.BytesIO()
        np.savez(stored, **value)
        return stored.getvalue()
    if not (hasattr(value, "__array_interface__") and hasattr(value, "dtype")):
        return None
    import numpy as np

    if value.dtype.hasobject:
        raise EncodingError(f"its member .{kind} is an array of Python objects")
    if kind == "npy":
        stored = io.BytesIO()
        np.save(stored, value)
        return stored.getvalue()
    if kind in _PIL_FORMATS and value.dtype == np.uint8:
        from PIL import Image

        return _saved(Image.fromarray(value), kind)
    return None


def _saved(image: Any, kind: str) -> bytes:
    stored = io.BytesIO()
    options = {"quality": JPEG_QUALITY} if _PIL_FORMATS[kind] == "JPEG" else {}
    image.save(stored, _PIL_FORMATS[kind], **options)
    return stored.getvalue()
