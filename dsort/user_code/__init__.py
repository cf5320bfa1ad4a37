"""User code: runs a user's functions and programs on records, in separate processes.

Read ``pool`` first. A worker sends records in frames, and receives the results as members of a tar.
The process at the other end (``child``) may raise, hang, leak or be killed. Then the record that
was running gets a second try, or counts as failed; the results of all others stay the same.
"""
