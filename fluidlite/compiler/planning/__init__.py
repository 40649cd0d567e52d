"""The plan: one chosen kernel a step, with moves, in order."""
