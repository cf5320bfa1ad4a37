"""The REST routes: they read a request, call the service, and return a model of ``dsort.model``.

In: HTTP requests. Out: JSON that the models validate, problem documents (RFC 9457), and the OpenAPI
document with examples. Routes decide nothing about jobs.
"""
