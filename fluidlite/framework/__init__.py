"""Tensor, program, registry, planner, interpreter, scope, backward; Fluid's names of ``fluid.framework``."""
