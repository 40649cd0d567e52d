"""From a program to the machine: graph, passes, kernel selection, memory plan, executable, interpreter."""
