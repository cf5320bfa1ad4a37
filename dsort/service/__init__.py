"""The job service: a queue of jobs and schedules behind a REST API, with its database.

In: HTTP requests with specs, from clients whose tokens say what they may do. Out: jobs, each run in
a process of its own through ``dsort.api``, their state as JSON, metrics, and events as they happen.
Several replicas may share one database. The service never touches payload.
"""
