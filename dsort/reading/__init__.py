"""Reads the records of shards, by number or key, from a result, a bucket or a shard that the user
names. Read ``dataset`` first, then ``shard``. Records are read by byte ranges, from any container
and any store. No job is run here."""
