"""Samples and references of the operators, by family: loaded when samples are first asked for."""
