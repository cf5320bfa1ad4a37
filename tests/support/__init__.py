"""Code that several tests share: test data, faults, stores, services, servers and browsers."""
