"""The job service: a queue of jobs and schedules behind a REST API, with its database.

Clients send HTTP requests with specs; their tokens decide what they may do. Each job runs in a
process of its own through ``dsort.api``. The service returns the state of jobs as JSON, metrics,
and events as they happen. Several replicas may share one database. The service never touches
payload.
"""
