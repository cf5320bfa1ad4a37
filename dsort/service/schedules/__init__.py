"""Jobs that are submitted by the clock."""
