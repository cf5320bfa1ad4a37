"""Buckets and their objects over HTTP: listed, read as they are or transformed, written, removed.

Requests have paths, ranges, names and bodies; answers are pages, streams of bytes, and objects.
This is the only package of the service that payload passes through. The service itself does not
parse payload: a separate process reads a shard and makes the answer.
"""
