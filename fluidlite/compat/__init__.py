"""Fluid's remaining names: flags and facts of the installation."""
