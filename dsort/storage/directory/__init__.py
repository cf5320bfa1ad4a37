"""Directories as buckets.

``bucket`` has the bucket, which removes files without following links; ``files`` has the operations
on single files: open files, listings, calls of Linux, and errors of the system as ``StorageError``.
"""
