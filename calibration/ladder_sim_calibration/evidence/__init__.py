"""Measures a borrowed machine in one go, and brings home what the other commands read."""
