"""Programs as Paddle 1.x saved them: the protocol buffer ``ProgramDesc``, read and written. Nothing is executed."""
