"""Lowering of tensor expressions to loop nests, and of these to kernel-language source."""
