"""The REST routes: they read a request, call the service, and return a model of ``dsort.model``.

``app`` puts the routes together, and ``jobs`` is the best example: read them first. Answers are
JSON validated by the models, problem documents (RFC 9457), and the OpenAPI document with examples.
Routes decide nothing about jobs.
"""
