"""Operators: each changes the batch of records of one input shard. ``all_operators.py`` lists them
in the order in which the extractor applies them."""
