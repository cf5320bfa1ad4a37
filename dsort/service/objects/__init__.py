"""Buckets and their objects over HTTP: listed, read as they are or transformed, written, removed.

In: paths, ranges, names and bodies of requests. Out: pages, streams of bytes, objects. This is the
one place of the service that payload passes through, and it is looked at in no place: what is made
of a shard, a process of its own makes.
"""
