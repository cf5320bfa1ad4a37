"""Hosts workers: as processes of this machine, or as actors on Ray.

A runtime receives a job's set-up and its tasks. It returns each answer once, whatever workers died
meanwhile. It moves tasks and answers, replaces workers and reaches the scratch of each node. The
job decides what is done, and in which order.
"""
