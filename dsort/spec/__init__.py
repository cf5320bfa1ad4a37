"""Job specs: reads, checks and completes what a user writes.

A spec is a file, a text or a mapping, in JSON, YAML or an older dialect of AIStore. The result is a
frozen :class:`JobSpec`, complete and checked, or a ``SpecError`` with all of its problems, each
with its field and a hint. Nothing here opens a bucket.
"""
