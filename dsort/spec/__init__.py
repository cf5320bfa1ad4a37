"""Job specs: reads, checks and completes what a user writes.

``load`` reads a file, text or mapping in JSON, YAML or an older dialect of AIStore. The result is a
frozen, complete and checked :class:`JobSpec` (``model``, the first to read) with warnings, or one
``SpecError`` with all problems, each with a hint. Nothing here opens a bucket or decides on data.
"""
