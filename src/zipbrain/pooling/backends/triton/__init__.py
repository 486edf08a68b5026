"""ZIPBrain and Twins as Triton kernels, for CUDA tensors."""
