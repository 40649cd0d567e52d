"""The differential tester: random programs, compiled against interpreted against float64 references."""
