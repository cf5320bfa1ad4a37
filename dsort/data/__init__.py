"""The content of a shard in columns: members, records, the record index, hashes and tallies.

It gets the members that a container has found, and makes records with their keys, hashes and byte
ranges, shape ``(n,)`` each, for ordering, cutting, spilling and verification. Everything here is
pure: no module opens a file.
"""
