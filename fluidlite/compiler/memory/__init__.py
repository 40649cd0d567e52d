"""Live ranges, the memory plan of a graph and the proof that it holds."""
