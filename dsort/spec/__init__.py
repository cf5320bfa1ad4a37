"""Job specs: reads, checks and completes what a user writes.

A file, text or mapping in JSON, YAML or an older dialect of AIStore becomes a :class:`JobSpec`
(``model``, the first to read), frozen, complete and checked, with warnings; or a ``SpecError`` with
all problems, each with field and hint (``load``). Nothing here opens a bucket or decides on data.
"""
