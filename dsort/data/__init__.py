"""What a shard holds, as columns: members, records, the record index, hashes and tallies.

In: the members that a container has found. Out: records with their keys, hashes and byte ranges,
shape ``(n,)`` each, which order, cut, spill and verification work on. Everything here is pure:
no module opens a file.
"""
