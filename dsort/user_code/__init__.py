"""User code: runs a user's functions and programs on records, in separate processes.

A worker sends records in frames, and receives their results as members of a tar. The process at the
other end (``child``) may raise, hang, leak or be killed: the worker then decides what happens to
the record that it was running, and all other records get the same results as without that.
"""
