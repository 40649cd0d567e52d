"""What tests use: every operator's samples and raw checks of a device, on any place; gradients of any program.

A plugin's whole test file is::

    from fluidlite.testing import conformance

    test_acme = conformance("acme:0", known_failures="known_failures.txt")
"""

from __future__ import annotations

from fluidlite.conformance.cases import Case, cases
from fluidlite.conformance.check import check_sample, compare
from fluidlite.conformance.checks import Check, checks, read_known_failures
from fluidlite.conformance.device_checks import device_checks
from fluidlite.conformance.random_bits import random_checks
from fluidlite.conformance.samples import Sample, reference_of, register_samples, samples_of
from fluidlite.conformance.tolerances import ConformanceError, gradient_tolerance, tolerance, tolerances
from fluidlite.testing.check import check_gradient
from fluidlite.testing.gradient_check import GradientMismatch, GradientReport, InputGradient
from fluidlite.testing.pytest_checks import conformance

__all__ = [
    "Case", "Check", "ConformanceError", "GradientMismatch", "GradientReport", "InputGradient", "Sample", "cases",
    "check_gradient", "check_sample", "checks", "compare", "conformance", "device_checks", "gradient_tolerance",
    "random_checks", "read_known_failures", "reference_of", "register_samples", "samples_of", "tolerance", "tolerances",
]  # fmt: skip
