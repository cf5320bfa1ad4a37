"""Fields become members only within the memory that the bytes of their records allow."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.litdata import leaf_names
from dsort.containers.mds import MDS
from dsort.containers.objects.container import CBOR, MSGPACK
from dsort.containers.tfrecord.container import TFRECORD
from dsort.errors import ConversionError
from tests.support.mds_writer import mds_shard
from tests.support.tfrecords import example_bytes, frame

OPTIONS = ContainerOptions(key_field="")
KEY = b"k" * 4000
FIELDS = 8000


def _example() -> bytes:
    values = [b""] * FIELDS
    return frame(example_bytes({"__key__": ("byte", KEY), "a": ("byte", values)}))


def _msgpack() -> bytes:
    fields = b"".join(b"\xa4%04d\x01" % number for number in range(FIELDS))
    return b"\xde%b\xa7__key__\xda\x0f\xa0%b%b" % ((FIELDS + 1).to_bytes(2, "big"), KEY, fields)


def _cbor() -> bytes:
    fields = b"".join(b"\x64%04d\x01" % number for number in range(FIELDS))
    return b"\xb9%b\x67__key__\x79\x0f\xa0%b%b" % ((FIELDS + 1).to_bytes(2, "big"), KEY, fields)


def _sample() -> bytes:
    names = {f"{number:04}": "uint8" for number in range(2500)}
    row = {"__key__": "k" * 50_000, **dict.fromkeys(names, 1)}
    return mds_shard({"__key__": "str", **names}, [row])


@pytest.mark.parametrize(
    ("container", "made"),
    [(TFRECORD, _example), (MSGPACK, _msgpack), (CBOR, _cbor), (MDS, _sample)],
    ids=["tfrecord", "msgpack", "cbor", "mds"],
)
def test_a_long_key_is_not_repeated_in_the_names_of_thousands_of_members(
    container: Container, made: Callable[[], bytes]
) -> None:
    data = made()
    reading = container.with_options(OPTIONS)
    members = reading.scan("s", data)
    with pytest.raises(ConversionError, match=r"record kkk.* too few for [\d,]+ members"):
        reading.bare(members, lambda at, size: data[at : at + size])


@pytest.mark.parametrize("leaves", [4000, 4001])
def test_a_long_key_of_an_index_is_not_repeated_in_the_names_of_leaves(leaves: int) -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    inner = {"type": "builtins.list", "context": None, "children_spec": [leaf] * leaves}
    context = json.dumps(["k" * 100_000])
    tree = {"type": "builtins.dict", "context": context, "children_spec": [inner]}
    found = leaf_names(json.dumps((1, tree)), 4000)
    assert found == [str(number) for number in range(4000)]
