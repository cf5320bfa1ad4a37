"""A job's work on its records, compiled once from the spec, and sent once to each worker.

Read ``pipeline`` first: it has the values that workers receive. ``compile`` makes them of a spec.
All code reads these values, and not the spec, when it reads, changes, orders and writes records.
``movement`` has the ways to move payload; a job chooses one by the sizes of its inputs.
"""
