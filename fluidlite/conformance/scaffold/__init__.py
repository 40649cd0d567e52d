"""New plugins: a package of one module with tests that pass, written from templates."""

from __future__ import annotations

from fluidlite.conformance.scaffold.new_plugin import KINDS, new_plugin

__all__ = ["KINDS", "new_plugin"]
