"""Buckets and their objects over HTTP: listed, read as they are or transformed, written, removed.

Requests have paths, ranges, names and bodies; answers are pages, streams of bytes, and objects.
Payload passes through no other package of the service. The service does not parse payload: a
process, which ``processes`` starts (read it first), reads a shard and makes the answer.
"""
