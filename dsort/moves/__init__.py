"""How payload gets from input shards into a worker, and how creators read it back.

Read ``base`` first: the interface of a move for creators, in ``map``, ``spill``, ``range``, and
``spilled_rows`` for tables. ``input_shard`` reads one input shard, and ``workers.index_writer``
spills it. Moves yield records as slices of views, so nothing here writes an output shard.
"""
