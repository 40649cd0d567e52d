"""The compiler's graph: values written once, operators, the verifier."""
