"""Which kernel runs an operator, and where."""
