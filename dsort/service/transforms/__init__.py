"""Transforms that have names, and the objects that they are applied to on their way out.

In: definitions from requests, names of shards. Out: rows of versions, and streams of bytes.
"""
