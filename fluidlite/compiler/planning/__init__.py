"""The plan: one chosen kernel a step, in order, with the moves that this needs."""
