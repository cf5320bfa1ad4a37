"""Hosts workers: as processes of this machine (``local``), or as actors on Ray (``ray/``).

A runtime (``base``, the first to read) receives a job's set-up and its tasks. It returns each
answer once, whatever workers died meanwhile. It replaces workers and reaches the scratch of each
node. What is done, and in which order, is decided by the job.
"""
