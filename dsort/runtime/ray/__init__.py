"""The runtime on Ray: the only folder that imports Ray.

A worker is an actor, and so is the agent of each node's scratch. In go tasks, out come answers, as
from the local runtime; errors of Ray become dsort's. A Ray that a job starts listens on loopback,
asks for a token, and leaves no process and no file, however the job ends.
"""
