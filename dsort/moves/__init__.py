"""How payload gets from input shards into a worker, and how creators read it back.

``input_shard`` reads one input shard; ``workers.index_writer`` writes it to scratch, where
payload is spilled. ``base`` is the interface of a move for creators, and ``choice`` picks the move
for the job's movement: ``map``, ``spill``, ``ranged``, or ``spilled_rows`` for tables. Moves yield
records as slices of views, so nothing here writes an output shard.
"""
