"""The job service: REST, queue, schedules, identity. It directs; payload never passes it."""
