"""The routes of AIStore's dSort, so that AIStore's own clients work with this service.

In: requests of AIStore's Python SDK, Go API and command line. Out: ``JobInfo`` and plain-text
errors, in AIStore's shape. Jobs are the same as those of the REST routes.
"""
