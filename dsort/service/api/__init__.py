"""The REST routes: they read a request, call the service, and return a model of ``dsort.model``.

Answers are JSON validated by the models, problem documents (RFC 9457), and the OpenAPI document
with examples. Routes decide nothing about jobs.
"""
