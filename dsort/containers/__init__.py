"""Container formats: bytes to members and back, one module a format.

``base`` says what a format owes the rest of dsort; ``tar`` is the one there is.
"""
