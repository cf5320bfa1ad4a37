"""How payload gets from input shards into a worker, and how creators read it back.

``input_shard`` reads one input shard, and ``workers.index_writer`` spills it. ``base`` is the
interface of a move for creators: ``map``, ``spill``, ``range``, or ``spilled_rows`` for tables.
Moves yield records as slices of views, so nothing here writes an output shard.
"""
