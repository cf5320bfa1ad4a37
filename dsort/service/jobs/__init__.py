"""Jobs as rows: submitted, queued, claimed by a replica, updated while they run, ended, removed.

Read ``states`` first, then ``changes``. This package takes checked specs and the reports of job
processes, keeps the rows of jobs, and decides which job runs next (``queue``). Each change is one
short transaction that names its attempt.
"""
