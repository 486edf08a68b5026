"""Dialects: one file per kind of transformer block."""
