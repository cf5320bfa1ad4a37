"""The pieces of ``dsort verify``: reading a result and its inputs again, and comparing them."""
