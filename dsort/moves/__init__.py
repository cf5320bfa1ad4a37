"""How payload gets from input shards into a worker, and how creators read it back.

Read ``base`` first: the interface of a move for creators. The moves are in ``map``, ``spill``,
``range`` and, for tables, ``spilled_rows``; ``input_shard`` reads one input shard. Moves yield
records as slices of views and write no output shards.
"""
