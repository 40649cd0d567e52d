"""The command line, reports and the demonstration."""
