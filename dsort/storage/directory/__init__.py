"""Directories as buckets.

``bucket`` is the bucket, and removes without following links; ``files`` is what one file takes:
open files, listings, calls of Linux, and errors of the system as ``StorageError``.
"""
