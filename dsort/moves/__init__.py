"""How payload gets from input shards into a worker, and how creators get it back.

``source`` reads one input shard; ``payload_spill`` keeps what it holds, where payload is spilled.
``base`` says what a creator asks of a move, and ``choice`` picks the one that the job's movement
names: ``map``, ``spill``, ``ranged``, or ``rows`` for tables. Records come out as slices of views,
so nothing here writes an output shard.
"""
