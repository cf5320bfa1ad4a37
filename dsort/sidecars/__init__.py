"""Files beside output shards that tell other readers what is where: their names and content.

In go names and members of output shards; out come bytes. It knows no jobs and no buckets.
"""
