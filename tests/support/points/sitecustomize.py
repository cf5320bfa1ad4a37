"""Python runs this first in every process whose ``PYTHONPATH`` leads here: what dsort's modules
define is wrapped as soon as they are loaded, in coordinators and workers alike."""

from tests.support.fault_points import install

install()
