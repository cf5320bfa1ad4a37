"""Jobs of the service as rows: what was asked, how far it is, how it ended."""
