"""Hosts workers: as processes of this machine (``local``), or as actors on Ray (``ray/``).

A runtime (``base``, the first to read) receives a job's set-up and its tasks. It returns each
answer once, even if workers die meanwhile. It replaces workers and reaches the scratch of each
node. The job decides which tasks are done, and in which order.
"""
