"""A module of a user's that ends its process while it is loaded."""

import os
import sys

__all__: list[str] = []

sys.stderr.write("goodbye\n")
sys.stderr.flush()
os._exit(3)
