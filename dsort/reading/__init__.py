"""Shards read again: in go what a user means by a result, a bucket or a shard, and a number or a
key; out come records, by ranges, whatever the container and the store. No job is run here."""
