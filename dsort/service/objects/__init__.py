"""Buckets and their objects over HTTP: listed, read as they are or transformed, written, removed.

Requests have paths, ranges, names and bodies; answers are pages, streams of bytes, and objects.
Payload passes through no other package of the service. The service itself does not parse it: a
separate process (``processes``, the first to read, starts it) reads a shard and makes the answer.
"""
