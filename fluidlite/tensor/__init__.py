"""Tensors: views of memory on a place, layouts, LoD, copies between places."""
