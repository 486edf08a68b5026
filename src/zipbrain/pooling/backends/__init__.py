"""Fused kernels. Each has the plain operators of `steps` and `merges` as its reference and a switch to turn it off."""
