"""Planning: makes a plan of kernel launches, control-flow steps and moves between places from a graph."""
