"""Reads and writes programs in Paddle 1.x's format, the protocol buffer ``ProgramDesc``. It executes nothing."""
