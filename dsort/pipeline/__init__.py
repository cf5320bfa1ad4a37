"""A job's work on its records, compiled once from the spec, and sent once to each worker.

Read ``pipeline`` first: it has the values that workers receive. ``compile`` makes them of a spec.
All code takes from them, and not from the spec, how records are read, changed, ordered and written.
``movement`` has the ways to move payload; a job chooses one by the sizes of its inputs.
"""
