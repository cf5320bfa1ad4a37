"""Who may do what, and what a spec from the network may name."""
