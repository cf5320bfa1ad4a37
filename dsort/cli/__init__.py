"""The command line, one file for each verb. Data goes to stdout, messages to stderr.

Read ``main`` first: it lists the verbs. Every module here is imported for ``dsort --help``, so each
imports only light modules at the top; a verb imports the others when it runs.
"""
