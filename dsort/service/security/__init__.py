"""Who may do what: tokens and roles, checks of specs from the network, limits, the audit trail.

In: tokens, request bodies and specs that nobody vouches for. Out: an identity, a spec that keeps to
the operator's rules, or an error that says which rule. No secret reaches a log.
"""
