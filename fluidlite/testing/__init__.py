"""The conformance kit: every operator's samples, and raw checks of a device, on any place.

A plugin's whole test file is::

    from fluidlite.testing import conformance

    test_acme = conformance("acme:0", known_failures="known_failures.txt")
"""

from __future__ import annotations

from fluidlite.testing.cases import Case, cases
from fluidlite.testing.check import (
    ConformanceError,
    check_gradient,
    check_sample,
    compare,
    gradient_tolerance,
    tolerance,
)
from fluidlite.testing.kit import Check, checks, conformance, read_known_failures
from fluidlite.testing.random_bits import random_checks
from fluidlite.testing.raw_device import device_checks

__all__ = [
    "Case", "Check", "ConformanceError", "cases", "check_gradient", "check_sample", "checks", "compare", "conformance",
    "device_checks", "gradient_tolerance", "random_checks", "read_known_failures", "tolerance",
]  # fmt: skip
