"""Files that a job keeps in its output buckets: lease and journal while it runs, the manifest and
the report of its result. Nothing here knows the job itself.

Begin with ``layout.py`` (where each file is), then ``manifest.py`` and ``transaction.py``.
"""
