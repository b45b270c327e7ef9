"""Readers of measurements that others published; each makes a profile."""
