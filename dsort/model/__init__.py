"""The state of jobs, schedules, plans and reports of a service, as one set of pydantic models.

The service builds them from its database and from documents of a result, the client parses them,
and the OpenAPI document shows their fields. They hold no behaviour, and need pydantic alone: the
client works without the packages of the service. Read ``base`` and ``job`` first.
"""
