"""Python runs this module first in every process whose ``PYTHONPATH`` has this directory. It wraps
functions of dsort's modules when they are loaded, in coordinators and workers alike."""

from tests.support.fault_points import install

install()
