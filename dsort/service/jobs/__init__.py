"""Jobs as rows: submitted, queued, claimed by a replica, updated while they run, ended, removed.

This package takes checked specs and the reports of job processes, keeps the rows of jobs, and
decides which job runs next. Each change is one short transaction that names the attempt that it is
made for.
"""
