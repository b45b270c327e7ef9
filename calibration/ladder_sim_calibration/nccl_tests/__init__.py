"""Measurements of a user's own links by nccl-tests: they become fabric files and curves of profiles."""
