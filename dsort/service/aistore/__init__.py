"""The routes of AIStore's dSort, so that AIStore's own clients work with this service.

Read ``guest`` first, then ``routes``. The routes accept requests of AIStore's Python SDK, Go API
and command line, and return ``JobInfo`` and plain-text errors in AIStore's format. The REST routes
show the same jobs.
"""
