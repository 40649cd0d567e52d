"""What is held against what: samples and references by operator type; the certificate of a place; the scaffold.

The certificate (every check of a place, in processes of their own, as a report that one can publish) is imported when
it is asked for: a plugin that registers samples has no use for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fluidlite.conformance.samples import Sample, reference_of, register_samples, samples_of

if TYPE_CHECKING:
    from fluidlite.conformance.certificate import Certificate, Outcome, Row
    from fluidlite.conformance.certificate_page import page
    from fluidlite.conformance.certification import certify
    from fluidlite.conformance.plugin_modules import load_plugin_modules

__all__ = [
    "Certificate",
    "Outcome",
    "Row",
    "Sample",
    "certify",
    "load_plugin_modules",
    "page",
    "reference_of",
    "register_samples",
    "samples_of",
]

_LATE = {
    "Certificate": "certificate",
    "Outcome": "certificate",
    "Row": "certificate",
    "certify": "certification",
    "load_plugin_modules": "plugin_modules",
    "page": "certificate_page",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
