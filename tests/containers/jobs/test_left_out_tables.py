"""Tables that are left out because they are damaged: what reports count of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline


def test_rows_of_a_shard_that_is_left_out_are_not_dropped_as_well(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        keys = [f"{shard}-{row}" for row in range(40)]
        table = pa.table({"__key__": keys, "txt": [key * 20 for key in keys]})
        path = tmp_path / "in" / f"in-{shard}.parquet"
        pq.write_table(table, path, row_group_size=10, compression="zstd", use_dictionary=False)
    last = pq.ParquetFile(path).metadata.row_group(3).column(0)
    end, data = last.data_page_offset + last.total_compressed_size, bytearray(path.read_bytes())
    data[end - 12 : end - 2] = b"\xff" * 10
    path.write_bytes(data)
    spec = spec_of(
        input_extension=".parquet",
        output_extension=".parquet",
        corrupt_shards="skip",
        ekm={"low-%d": ["0-0", "0-1", "0-2"]},
        ekm_missing_key="ignore",
    )
    del spec["output_format"]
    report = run_inline(spec, tmp_path, Moved("spill", buffer_bytes=8192))
    assert report.order.flow.read == {"": 40}
    assert report.order.flow.out == report.records
