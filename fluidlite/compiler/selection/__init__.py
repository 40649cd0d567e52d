"""Which kernel runs an operator, where, and what moves that choice needs."""
