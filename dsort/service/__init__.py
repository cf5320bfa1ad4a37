"""The job service: a queue of jobs and schedules behind a REST API, with its database.

Read ``service`` first: all parts in one object, without HTTP. ``api`` has the routes, ``jobs`` and
``schedules`` the rows, ``hosting`` the processes. Each job runs in its own process, through
``dsort.api``. Several replicas may share one database. The service never touches payload.
"""
