"""Kernel selection: which kernel runs an operator, and on which place."""
