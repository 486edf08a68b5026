"""Thin doors to all of it."""
