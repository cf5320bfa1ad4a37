"""Columnar shards: Parquet, and Arrow IPC as file and as stream. A record is a row.

In go the bytes of shards, out come Arrow record batches, and the other way round. Nothing here
knows of jobs. pyarrow is loaded when the first such shard is opened.
"""
