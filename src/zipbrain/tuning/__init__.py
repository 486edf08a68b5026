"""Tuning: the fastest recipe that keeps a model's answers, and the certificate that says how far."""
