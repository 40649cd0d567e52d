"""Scaffolds of new plugins: a package with one module and passing tests, from templates."""

from __future__ import annotations

from fluidlite.conformance.scaffold.new_plugin import KINDS, new_plugin

__all__ = ["KINDS", "new_plugin"]
