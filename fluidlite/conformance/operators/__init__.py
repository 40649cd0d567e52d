"""Samples and references of the operators: a module has those of the module of ``fluidlite.operators`` called so.

They are loaded when samples are first asked for.
"""
