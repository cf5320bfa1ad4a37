"""What a job does to its records: compiled once from its spec, sent once to each worker.

Read ``pipeline`` first: the values that workers get. ``compile`` makes them of a spec; no code
behind it asks the spec how records are read, changed, put in order or written. ``movement`` is how
their payload moves, which is chosen once the sizes of the inputs are known.
"""
