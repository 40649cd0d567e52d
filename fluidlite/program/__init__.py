"""Programs: blocks, operators, variables, the registries of operators and kernels, backward, the saved form."""
