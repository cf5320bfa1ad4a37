"""What a service says about jobs, schedules, plans and reports: one set of pydantic models.

In: rows of the service's database, documents of a result, or the JSON that a client has received.
Out: validated values with the fields, the types and the examples that the OpenAPI document shows.
The service builds them, the client parses them, the page is one of them. They hold no behaviour,
and need pydantic alone: the client works without the packages of the service.
"""
