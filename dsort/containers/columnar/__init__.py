"""Columnar shards: Parquet, and Arrow IPC as file and as stream. A record is a row.

``container`` is the interface to the rest of dsort: read it first. ``reader`` makes Arrow record
batches from the bytes of shards, and ``writer`` writes batches as shards. Nothing here depends on
jobs. pyarrow is loaded when the first such shard is opened.
"""
