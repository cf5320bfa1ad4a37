"""What several tests build their data with."""
