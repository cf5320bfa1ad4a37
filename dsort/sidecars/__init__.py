"""Files beside output shards with which other readers find records: their names and content.

Read ``base`` first: the contract of a kind. ``kinds`` lists the kinds. This package makes bytes
from names and members of output shards. The package does not depend on jobs or buckets.
"""
