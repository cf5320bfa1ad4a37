"""User code: what runs a user's functions and programs on records, in processes of its own.

A worker hands over records in frames, and gets back their results as members of a tar. The process
at the other end (``child``) may raise, hang, leak or be killed: what becomes of the record that it
was at is the worker's to decide, and all others come out as if nothing had been.
"""
