"""The command line, one file a verb. Data goes to stdout, messages to stderr.

Every module here is imported for ``dsort --help``, so each imports only what is light; what a verb
needs beyond that it imports when it runs.
"""
