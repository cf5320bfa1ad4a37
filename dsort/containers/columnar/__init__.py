"""Columnar shards: Parquet, and Arrow IPC as file and as stream. A record is a row.

The bytes of shards are read into Arrow record batches, and batches are written as shards. Nothing
here depends on jobs. pyarrow is loaded when the first such shard is opened.
"""
