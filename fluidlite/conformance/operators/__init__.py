"""Samples and references of operators; each module mirrors the one of the same name in ``fluidlite.operators``.

They are imported when samples are first requested.
"""
