"""Backends: who computes a pooling. `choose` decides, `plain` is the reference, and every other one has a switch."""
