"""The conformance kit: every operator's samples, and raw checks of a device, on any place.

A plugin's whole test file is::

    from fluidlite.testing import conformance

    test_acme = conformance("acme:0", known_failures="known_failures.txt")
"""

from __future__ import annotations

from fluidlite.testing.cases import Case, cases
from fluidlite.testing.check import ConformanceError, check_gradient, check_sample, gradient_tolerance, tolerance
from fluidlite.testing.device_checks import device_checks
from fluidlite.testing.kit import Check, checks, conformance, read_known_failures

__all__ = [
    "Case", "Check", "ConformanceError", "cases", "check_gradient", "check_sample", "checks", "conformance",
    "device_checks", "gradient_tolerance", "read_known_failures", "tolerance",
]  # fmt: skip
