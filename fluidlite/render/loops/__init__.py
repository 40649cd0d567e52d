"""Expressions as loops: what is computed for each element of a result, and of which loops that is the body."""
