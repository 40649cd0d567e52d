"""The public testing package: conformance checks of operators and devices on any place, and gradient checks.

A plugin's whole test file is::

    from fluidlite.testing import conformance

    test_acme = conformance("acme:0", known_failures="known_failures.txt")
"""

from fluidlite.base.exports import export as _export
from fluidlite.conformance.cases import Case as Case, cases as cases
from fluidlite.conformance.check import check_sample as check_sample, compare as compare
from fluidlite.conformance.checks import Check as Check, checks as checks, read_known_failures as read_known_failures
from fluidlite.conformance.device_checks import device_checks as device_checks
from fluidlite.conformance.random_bits import random_checks as random_checks
from fluidlite.conformance.samples import (
    Sample as Sample,
    reference_of as reference_of,
    register_samples as register_samples,
    samples_of as samples_of,
)
from fluidlite.conformance.tolerances import (
    ConformanceError as ConformanceError,
    gradient_tolerance as gradient_tolerance,
    tolerance as tolerance,
    tolerances as tolerances,
)
from fluidlite.testing.check import check_gradient as check_gradient
from fluidlite.testing.gradient_report import (
    ElementGradient as ElementGradient,
    GradientMismatch as GradientMismatch,
    GradientReport as GradientReport,
    InputGradient as InputGradient,
)
from fluidlite.testing.pytest_checks import conformance as conformance

_export(__name__)
