"""Cells of tables that cannot become members are refused with their shard."""

from __future__ import annotations

import pyarrow as pa

from dsort.containers.columnar.cells import cells_of_shard
from dsort.errors import ConversionError
from tests.support.refusals import raises


def test_a_cell_without_a_form_names_its_shard_and_column() -> None:
    far = pa.array([2**62], pa.timestamp("s"))  # a year that no date has
    table = pa.table({"__key__": ["a"], "caption": far})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with raises(ConversionError, "in-0.arrows", "caption"):
        cells_of_shard("in-0.arrows", memoryview(sink.getvalue()), "")
