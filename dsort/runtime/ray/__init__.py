"""The runtime on Ray: the only folder that imports Ray. Read ``runtime`` first.

A worker is an actor, and so is the agent of each node's scratch. Tasks and answers are the same as
in the local runtime; errors of Ray are converted to errors of dsort. A Ray that a job starts
listens on loopback, requires a token, and leaves no process and no file, however the job ends.
"""
