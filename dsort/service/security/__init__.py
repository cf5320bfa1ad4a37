"""The rights of clients: tokens, roles, checks of specs from the network, limits, audit trail.

Tokens, request bodies and specs come from untrusted clients. Read ``tokens`` first, which makes
identities from tokens, and ``guard``, which checks a spec against the operator's rules. The result
is a spec that follows the rules, or an error that names the violated rule. No secret reaches a log.
"""
