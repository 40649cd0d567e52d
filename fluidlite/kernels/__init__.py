"""Kernels of operators: one package for each library or capability, each a plugin like a third party's."""
