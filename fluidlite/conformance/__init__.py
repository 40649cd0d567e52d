"""Conformance tests: samples and float64 references by operator type; the certificate of a place; plugin scaffolds.

The certificate (all checks of a place, run in worker processes, as a report) is imported lazily: a plugin that only
registers samples does not need it.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from fluidlite.base.exports import export as _export
from fluidlite.conformance.samples import (
    Sample as Sample,
    reference_of as reference_of,
    register_samples as register_samples,
    samples_of as samples_of,
)

if _TYPE_CHECKING:
    from fluidlite.conformance.certificate import (
        Certificate as Certificate,
        CheckOutcome as CheckOutcome,
        OperatorRow as OperatorRow,
    )
    from fluidlite.conformance.certificate_page import page as page
    from fluidlite.conformance.certification import certify as certify
    from fluidlite.conformance.plugin_modules import load_plugin_modules as load_plugin_modules

_LAZY_MODULES = {
    "Certificate": "certificate",
    "CheckOutcome": "certificate",
    "OperatorRow": "certificate",
    "certify": "certification",
    "load_plugin_modules": "plugin_modules",
    "page": "certificate_page",
}


def __getattr__(name: str) -> _Any:
    if name in _LAZY_MODULES:
        return getattr(_import_module(f"{__name__}.{_LAZY_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_export(__name__, *_LAZY_MODULES)
