"""A linked executable: launches, guards, the fast path of a call."""
