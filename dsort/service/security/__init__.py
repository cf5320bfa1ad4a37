"""The rights of clients: tokens, roles, checks of specs from the network, limits, audit trail.

Tokens, request bodies and specs come from untrusted clients. The result is an identity, a spec that
follows the operator's rules, or an error that names the violated rule. No secret reaches a log.
"""
