"""The compiler's intermediate representation: a graph in SSA form, its operators, and the verifier."""
