"""Fluid's module of that path: gradients of a program. See :mod:`fluidlite.framework.backward`."""

from __future__ import annotations

from fluidlite.framework.backward import append_backward, calc_gradient, gradients

__all__ = ["append_backward", "calc_gradient", "gradients"]
