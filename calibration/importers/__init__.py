"""Readers of published measurements, and of logs of nccl-tests; they make profiles and fabric files."""
