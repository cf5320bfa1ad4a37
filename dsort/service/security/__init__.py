"""The rights of clients: tokens, roles, checks of specs from the network, limits, audit trail.

Tokens, request bodies and specs come from untrusted clients. ``tokens`` makes an identity of one;
``guard`` checks a spec against the operator's rules: read these first. The result is a spec that
follows the rules, or an error that names the violated one. No secret reaches a log.
"""
