"""What a job does to its records: compiled once from the spec, and sent once to each worker.

Read ``pipeline`` first: it has the values that workers receive. ``compile`` makes these values from
a spec. After that, no code reads from the spec how records are read, changed, ordered or written.
``movement`` is how the payload moves. It is chosen once the sizes of the inputs are known.
"""
