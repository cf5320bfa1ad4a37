"""Arrow and Parquet shards of other programs: they are read, or refused by name. A good shard that
dsort cannot read is never left out as a corrupt one."""

from __future__ import annotations

import base64
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from dsort.errors import InputError, UnsupportedShardError
from tests.support.engine import count_of, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises

SPILLED = Moved("spill", workers=2, partitions=3)
ROWS = 24


def shuffled(root: Path, suffix: str, **fields: Any) -> Any:
    shuffle = {"kind": "shuffle", "seed": "7"}
    limits: dict[str, Any] = {"output_shard_records": 100, "row_group_rows": 10}
    spec = spec_of(
        input_extension=suffix, key_field="id", algorithm=shuffle, **{**limits, **fields}
    )
    return run_inline(spec, root, SPILLED)


def output(root: Path) -> Path:
    (found,) = [path for path in (root / "out").iterdir() if path.is_file()]
    return found


def categories(polars: Any) -> Any:
    """A frame with a Categorical and an Enum column, nulls among both."""
    names = ["red", None, "green", "blue"] * (ROWS // 4)
    sizes = ["small", "large", None] * (ROWS // 3)
    return polars.DataFrame(
        {
            "id": [f"r{at:02d}" for at in range(ROWS)],
            "colour": polars.Series(names, dtype=polars.Categorical),
            "size": polars.Series(sizes, dtype=polars.Enum(["small", "middle", "large"])),
        }
    )


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("level", ["newest", "oldest"])
@pytest.mark.parametrize(
    ("suffix", "output_extension"),
    [(".arrow", ".arrow"), (".arrows", ".arrows"), (".arrow", ".parquet"), (".arrow", ".arrows")],
)
def test_categories_and_enums_of_polars_come_out_as_they_went_in(
    tmp_path: Path, suffix: str, output_extension: str, level: str
) -> None:
    import polars  # takes a while to load

    frame = categories(polars)
    (tmp_path / "in").mkdir()
    write = frame.write_ipc if suffix == ".arrow" else frame.write_ipc_stream
    compat = getattr(polars.CompatLevel, level)()
    write(tmp_path / "in" / f"in-0{suffix}", compat_level=compat)
    assert shuffled(tmp_path, suffix, output_extension=output_extension).records == ROWS
    read = {".arrow": polars.read_ipc, ".arrows": polars.read_ipc_stream}
    found = read.get(output_extension, polars.read_parquet)(output(tmp_path))
    assert found.schema == frame.schema
    assert found["id"].to_list() != frame["id"].to_list()
    assert found.sort("id").equals(frame)


@pytest.mark.parametrize("kind", [pa.binary_view(), pa.null()])
def test_dictionaries_that_parquet_does_not_have_go_there_with_their_values(
    tmp_path: Path, kind: pa.DataType
) -> None:
    words = pa.array([None, None] if kind == pa.null() else [b"red", b"blue"], kind)
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), words)
    table = pa.table({"id": ["r0", "r1", "r2"], "word": column})
    (tmp_path / "in").mkdir()
    with pa.ipc.new_file(tmp_path / "in" / "in-0.arrow", table.schema) as writer:
        writer.write_table(table)
    shuffled(tmp_path, ".arrow", output_extension=".parquet")
    found = pq.read_table(output(tmp_path)).sort_by("id")["word"].to_pylist()
    assert found == [words[at].as_py() for at in (0, 1, 0)]


@pytest.mark.parametrize("kind", [pa.month_day_nano_interval(), pa.struct([])])
def test_a_type_of_arrow_that_parquet_does_not_have_is_refused_by_column(
    tmp_path: Path, kind: pa.DataType
) -> None:
    table = pa.table({"id": ["r0", "r1"], "odd": pa.nulls(2, kind)})
    (tmp_path / "in").mkdir()
    with pa.ipc.new_file(tmp_path / "in" / "in-0.arrow", table.schema) as writer:
        writer.write_table(table)
    with raises(InputError, "column odd"):
        shuffled(tmp_path, ".arrow", output_extension=".parquet")
    assert shuffled(tmp_path, ".arrow").records == 2


@pytest.mark.parametrize("words", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_grow_or_are_replaced_are_read(
    tmp_path: Path, words: pa.DataType, *, deltas: bool
) -> None:
    kind = pa.dictionary(pa.uint16(), words)
    schema = pa.schema([("id", pa.string()), ("word", kind)])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    (tmp_path / "in").mkdir()
    wanted = {}
    with pa.ipc.new_stream(tmp_path / "in" / "in-0.arrows", schema, options=options) as writer:
        for batch in range(4):
            known = [f"w{at}" for at in range(batch + 2)]
            known = known if deltas else known[::-1]
            ids = pa.array([f"r{batch}{at}" for at in range(len(known))])
            wanted.update(zip(ids.to_pylist(), known, strict=True))
            places = pa.array(range(len(known)), pa.uint16())
            column = pa.DictionaryArray.from_arrays(places, pa.array(known, words))
            writer.write_batch(pa.record_batch([ids, column], schema=schema))
        stats = writer.stats
    assert (stats.num_dictionary_deltas, stats.num_replaced_dictionaries) == (
        (3, 0) if deltas else (0, 3)
    )
    shuffled(tmp_path, ".arrows")
    with pa.ipc.open_stream(output(tmp_path)) as reader:
        found = reader.read_all()
    assert found.schema == schema
    assert dict(zip(*(found[name].to_pylist() for name in schema.names), strict=True)) == wanted


def test_a_dictionary_within_a_list_is_refused_by_column(tmp_path: Path) -> None:
    import polars  # takes a while to load

    tags = polars.Series([["a"], ["b", "a"]], dtype=polars.List(polars.Categorical))
    (tmp_path / "in").mkdir()
    polars.DataFrame({"id": ["r0", "r1"], "tags": tags}).write_ipc(tmp_path / "in" / "in-0.arrow")
    with raises(InputError, "column tags", "shard in-0.arrow"):
        shuffled(tmp_path, ".arrow", corrupt_shards="skip")


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Wraps keys in nothing: what is tested here is how encrypted files look."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def plain(path: Path, name: str) -> None:
    table = pa.table({"id": [f"{name}{at}" for at in range(ROWS)], "score": list(range(ROWS))})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)


def plain_timestamps(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    seen = pa.array([[datetime(1969, 12, 31, 23, 59, 59, 999_999)]] * ROWS)
    table = pa.table({"id": [f"p{at}" for at in range(ROWS)], "seen": seen})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)


def encrypted(path: Path, **options: Any) -> None:
    table = pa.table({"id": [f"e{at}" for at in range(ROWS)], "score": list(range(ROWS))})
    wanted = encryption.EncryptionConfiguration(footer_key="f", **options)
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), wanted)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def encrypted_footer(path: Path) -> None:
    encrypted(path, column_keys={"c": ["score"]})
    assert path.read_bytes()[:4] == b"PARE"


def encrypted_column(path: Path) -> None:
    encrypted(path, column_keys={"c": ["score"]}, plaintext_footer=True)
    assert path.read_bytes()[:4] == b"PAR1"


def wrapped_timestamps(path: Path) -> None:
    """Spark's INT96 with the last day that it knows, among others and in a list."""
    days = [[datetime(2020, 1, 1), None], [datetime(9999, 12, 31)]] * (ROWS // 2)
    kind = pa.list_(pa.timestamp("us"))
    table = pa.table({"id": [f"t{at}" for at in range(ROWS)], "seen": pa.array(days, kind)})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)


def wide_integers(path: Path) -> None:
    import polars  # takes a while to load

    frame = polars.DataFrame({"id": ["r"], "n": polars.Series([1], dtype=polars.Int128)})
    frame.write_ipc(path)


def first_feather(path: Path) -> None:
    """pyarrow writes no such files any more: only the magic is looked at."""
    path.write_bytes(b"FEA1" + bytes(100) + b"FEA1")


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("write", "suffix", "named"),
    [
        (encrypted_footer, ".parquet", "Parquet"),
        (encrypted_column, ".parquet", "column score"),
        (wide_integers, ".arrow", "64 bits"),
        (wrapped_timestamps, ".parquet", "column seen"),
        (first_feather, ".arrow", "Feather"),
    ],
)
def test_a_good_shard_that_dsort_cannot_read_is_never_skipped_as_corrupt(
    tmp_path: Path, write: Any, suffix: str, named: str, place: int
) -> None:
    names = [f"in-{at}{suffix}" for at in range(2)]
    if write is wrapped_timestamps:
        plain_timestamps(tmp_path / "in" / names[1 - place])
    else:
        plain(tmp_path / "in" / names[1 - place], "p")
    write(tmp_path / "in" / names[place])
    for reaction in ("abort", "skip"):
        with raises(UnsupportedShardError, named, shard=names[place]) as refused:
            shuffled(tmp_path, suffix, corrupt_shards=reaction)
        assert "corrupt" not in refused.value.message + refused.value.hint
    (tmp_path / "in" / names[place]).write_bytes(b"no table")  # a corrupt one is left out
    assert count_of(shuffled(tmp_path, suffix, corrupt_shards="skip"), "corrupt_shards")[0] == 1


def test_old_timestamps_that_nanoseconds_reach_come_out_as_they_went_in(tmp_path: Path) -> None:
    days = [datetime(1677, 9, 22), datetime(1970, 1, 1), datetime(2262, 4, 10, 23, 59, 59, 999_999)]
    early = datetime(1969, 12, 31, 23, 59, 58, 1)
    seen = pa.array([*days, early, None, early], pa.timestamp("us"))
    table = pa.table({"id": [f"r{at}" for at in range(len(seen))], "seen": seen})
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "in-0.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.ParquetFile(path).schema.column(1).physical_type == "INT96"
    shuffled(tmp_path, ".parquet")
    found = pq.read_table(output(tmp_path)).sort_by("id")["seen"].cast(pa.timestamp("us"))
    assert found.to_pylist() == seen.to_pylist()
