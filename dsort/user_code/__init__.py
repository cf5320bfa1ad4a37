"""User code: runs a user's functions and programs on records, in separate processes.

Read ``pool`` first. A worker sends records in frames, and receives their results as members of a
tar. The process at the other end (``child``) may raise, hang, leak or be killed. The worker then
tries the record that was running again, or counts it as failed; all other records get the same
results as without the failure.
"""
