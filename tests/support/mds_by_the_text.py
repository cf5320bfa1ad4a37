"""A reader of MDS shards (MosaicML Streaming), written from the format's text alone: from what
its public documentation says of ``index.json``, encodings, compressions and hashes, and from the
known layout of a shard. Its author had not seen the writer that it judges.

A shard is ``u32 n | u32 offset[n + 1] | configuration (JSON) | samples``, little-endian. Offsets
count from the start of the file. A sample is a u32 size of each column whose size varies, then the
values, in the order of the names of the columns.

All that the text does not allow raises `MdsError`: nothing is skipped and nothing is guessed.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import xxhash
import zstandard

INDEX_KEYS = frozenset({"shards", "version"})
SHARD_KEYS = frozenset(
    {
        "column_encodings",
        "column_names",
        "column_sizes",
        "compression",
        "format",
        "hashes",
        "raw_data",
        "samples",
        "size_limit",
        "version",
        "zip_data",
    }
)
FILE_KEYS = frozenset({"basename", "bytes", "hashes"})
COLUMN_KEYS = ("column_encodings", "column_names", "column_sizes")

FIXED_FORMATS = {
    "int": "<q",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}
"""Encodings of one number: its `struct` format."""

VARIABLE_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": lambda value: value.decode("utf-8"),
    "str_int": lambda value: int(value.decode("utf-8")),
    "str_float": lambda value: float(value.decode("utf-8")),
    "str_decimal": lambda value: Decimal(value.decode("utf-8")),
    "json": lambda value: json.loads(value.decode("utf-8")),
    # Pictures stay as they are stored: a test compares files, not pixels.
    "jpeg": bytes,
    "png": bytes,
}

XXHASHES: dict[str, Callable[[bytes], str]] = {
    "xxh32": lambda data: xxhash.xxh32(data).hexdigest(),
    "xxh64": lambda data: xxhash.xxh64(data).hexdigest(),
    "xxh128": lambda data: xxhash.xxh128(data).hexdigest(),
    "xxh3_64": lambda data: xxhash.xxh3_64(data).hexdigest(),
    "xxh3_128": lambda data: xxhash.xxh3_128(data).hexdigest(),
}
HASHLIB_NAMES = {
    *("blake2b", "blake2s", "md5", "sha1", "sha224", "sha256", "sha384", "sha512"),
    *("sha3_224", "sha3_256", "sha3_384", "sha3_512"),
}


class MdsError(AssertionError):
    """A file breaks a rule of the format."""


def samples_in(directory: Path) -> Iterator[dict[str, Any]]:
    """The samples of a directory with an ``index.json``, decoded, in the order of the index.

    Raises:
        MdsError: the index, a file or a sample breaks the format.
    """
    for shard, data in raw_shards(directory):
        yield from samples_of(shard, data)


def raw_shards(directory: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each shard's entry in the index, and its bytes without compression. Sizes and hashes of
    both files, compressed and not, have been checked."""
    for shard in shards_in(directory):
        yield shard, raw_bytes(directory, shard)


def shards_in(directory: Path) -> list[dict[str, Any]]:
    """The entries of ``index.json``, each checked by itself."""
    index = json.loads((directory / "index.json").read_text("utf-8"))
    demand(set(index) == INDEX_KEYS, f"index.json has the keys {sorted(index)}")
    demand(index["version"] == 2, f"index.json has version {index['version']}")
    for shard in index["shards"]:
        check_entry(shard)
    names = [shard["raw_data"]["basename"] for shard in index["shards"]]
    demand(len(set(names)) == len(names), "two shards have one name")
    return list(index["shards"])


def check_entry(shard: Mapping[str, Any]) -> None:
    """The entry has every key of the format, and its parts agree."""
    demand(set(shard) == SHARD_KEYS, f"a shard has the keys {sorted(shard)}")
    demand(shard["format"] == "mds", f"format {shard['format']!r}")
    demand(shard["version"] == 2, f"a shard has version {shard['version']}")
    names = shard["column_names"]
    demand(len(names) > 0, "a shard has no columns")
    demand(names == sorted(set(names)), f"columns are not sorted, or not unique: {names}")
    demand(
        len(names) == len(shard["column_encodings"]) == len(shard["column_sizes"]),
        "names, encodings and sizes of columns differ in number",
    )
    for encoding, size in zip(shard["column_encodings"], shard["column_sizes"], strict=True):
        demand(size == size_of(encoding), f"{encoding} has size {size}")
    hashes = shard["hashes"]
    demand(hashes == sorted(set(hashes)), f"hashes are not sorted, or not unique: {hashes}")
    files = [shard["raw_data"]] + ([shard["zip_data"]] if shard["compression"] else [])
    for file in files:
        demand(set(file) == FILE_KEYS, f"a file has the keys {sorted(file)}")
        demand("/" not in file["basename"], f"basename {file['basename']!r}")
        demand(set(file["hashes"]) == set(hashes), f"{file['basename']} lacks hashes")
    raw_name, limit = shard["raw_data"]["basename"], shard["size_limit"]
    demand(raw_name.endswith(".mds"), f"basename {raw_name!r}")
    demand(shard["raw_data"]["bytes"] < 2**32, f"{raw_name}: offsets need more than 32 bits")
    if limit is not None and shard["samples"] > 1:
        demand(shard["raw_data"]["bytes"] <= limit, f"{raw_name} is over its size limit")
    if shard["compression"]:
        codec = shard["compression"].partition(":")[0]
        zip_name = shard["zip_data"]["basename"]
        demand(zip_name == f"{raw_name}.{codec}", f"{zip_name!r} holds {raw_name!r}")
    else:
        demand(shard["zip_data"] is None, f"{raw_name} has zip_data without a compression")


def raw_bytes(directory: Path, shard: Mapping[str, Any]) -> bytes:
    """The shard without compression, its files checked."""
    if not shard["compression"]:
        data = (directory / shard["raw_data"]["basename"]).read_bytes()
    else:
        zipped = (directory / shard["zip_data"]["basename"]).read_bytes()
        check_file(shard["zip_data"], zipped)
        data = decompressed(shard["compression"].partition(":")[0], zipped)
    check_file(shard["raw_data"], data)
    return data


def check_file(file: Mapping[str, Any], data: bytes) -> None:
    name = file["basename"]
    demand(len(data) == file["bytes"], f"{name} has {len(data)} bytes, not {file['bytes']}")
    for algorithm, digest in file["hashes"].items():
        found = digest_by(algorithm, data)
        demand(found == digest, f"{name}: {algorithm} is {found}, not {digest}")


def digest_by(algorithm: str, data: bytes) -> str:
    if algorithm in XXHASHES:
        return XXHASHES[algorithm](data)
    demand(algorithm in HASHLIB_NAMES, f"unknown hash {algorithm!r}")
    return hashlib.new(algorithm, data).hexdigest()


def decompressed(codec: str, data: bytes) -> bytes:
    if codec == "zstd":
        # Common one-call decoders read the first frame of a file and leave the rest out.
        frame = zstandard.ZstdDecompressor().decompressobj()
        whole: bytes = frame.decompress(data)
        demand(frame.eof and not frame.unused_data, "a zstd file is not exactly one frame")
        return whole
    demand(codec in ("gz", "bz2"), f"this reader does not know the compression {codec!r}")
    return gzip.decompress(data) if codec == "gz" else bz2.decompress(data)


def samples_of(shard: Mapping[str, Any], data: bytes) -> list[dict[str, Any]]:
    """The samples of the bytes of one shard, which agree with its entry in the index."""
    name = shard["raw_data"]["basename"]
    configuration, samples = samples_of_shard(data, name)
    demand(
        len(samples) == shard["samples"],
        f"{name} has {len(samples)} samples, not {shard['samples']}",
    )
    for key, value in configuration.items():
        demand(key in shard, f"{name}: its configuration has an unknown key {key!r}")
        demand(
            value == shard[key], f"{name}: {key} is {value!r} in it, {shard[key]!r} in the index"
        )
    return samples


def samples_of_shard(
    data: bytes, name: str = "a shard"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The configuration in a shard and its samples, read without the index."""
    demand(len(data) >= 8, f"{name} is too short for a header")
    (count,) = struct.unpack_from("<I", data)
    header_bytes = 4 + 4 * (count + 1)
    demand(len(data) >= header_bytes, f"{name} is too short for its offsets")
    offsets = struct.unpack_from(f"<{count + 1}I", data, 4)
    demand(offsets[0] >= header_bytes, f"{name}: the first sample lies in the header")
    demand(offsets[-1] == len(data), f"{name} does not end with its last sample")
    configuration = json.loads(data[header_bytes : offsets[0]].decode("utf-8"))
    for key in COLUMN_KEYS:
        demand(key in configuration, f"{name}: its configuration lacks {key}")
    samples = []
    for number, (start, end) in enumerate(pairwise(offsets)):
        demand(start <= end, f"{name}: sample {number} ends before it starts")
        samples.append(decoded(f"{name}, sample {number}", configuration, data[start:end]))
    return configuration, samples


def decoded(where: str, columns: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """One sample. Its sizes and values fill it exactly."""
    variable = columns["column_sizes"].count(None)
    demand(len(data) >= 4 * variable, f"{where} is too short for its sizes")
    sizes = iter(struct.unpack_from(f"<{variable}I", data))
    position, sample = 4 * variable, {}
    for name, encoding, fixed in zip(
        columns["column_names"], columns["column_encodings"], columns["column_sizes"], strict=True
    ):
        size = next(sizes) if fixed is None else fixed
        value = data[position : position + size]
        demand(len(value) == size, f"{where} ends inside column {name!r}")
        sample[name] = decode(encoding, value)
        position += size
    demand(position == len(data), f"{where} has {len(data) - position} bytes after its columns")
    return sample


def size_of(encoding: str) -> int | None:
    """Bytes of each value of an encoding, or None where they vary."""
    kind, _, parameters = encoding.partition(":")
    if kind in FIXED_FORMATS:
        return struct.calcsize(FIXED_FORMATS[kind])
    dtype, _, shape = parameters.partition(":")
    if kind == "ndarray" and shape:
        return int(numpy.dtype(dtype).itemsize * numpy.prod(shape_of(shape)))
    return None


def decode(encoding: str, value: bytes) -> Any:
    kind, _, parameters = encoding.partition(":")
    if kind in FIXED_FORMATS:
        return struct.unpack(FIXED_FORMATS[kind], value)[0]
    dtype, _, shape = parameters.partition(":")
    if kind == "ndarray" and shape:
        return numpy.frombuffer(value, dtype).reshape(shape_of(shape))
    demand(kind in VARIABLE_DECODERS, f"this reader does not know the encoding {encoding!r}")
    return VARIABLE_DECODERS[kind](value)


def shape_of(text: str) -> tuple[int, ...]:
    """The shape ``3,224,224`` at the end of an encoding ``ndarray:uint8:3,224,224``."""
    return tuple(int(part) for part in text.split(","))


def demand(holds: bool, problem: str) -> None:
    if not holds:
        raise MdsError(problem)
