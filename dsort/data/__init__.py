"""The content of a shard in columns: members, records, the record index, hashes and tallies.

A container makes a table of ``members``; ``records`` groups them by key; ``index`` lists the
columns of the record index. Read these three modules first. A column is an array with a value for
each record, or the bytes of texts and their offsets. No module of this room opens a file.
"""
