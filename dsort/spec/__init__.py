"""Job specs: reads, checks and completes what a user writes.

``load`` reads a file, text or mapping in JSON, YAML or an older dialect of AIStore. The result is a
frozen, complete and checked :class:`JobSpec` with warnings, or one ``SpecError`` with all problems,
each with a hint. To read the code, begin with ``model``. No module of this room opens a bucket.
"""
