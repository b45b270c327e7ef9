"""Communicators: what sums partial sums over the ranks."""
