"""Fluid's module of that path: gradients of a program. See :mod:`fluidlite.program.backward`."""

from __future__ import annotations

from fluidlite.program.backward import append_backward, calc_gradient, gradients

__all__ = ["append_backward", "calc_gradient", "gradients"]
