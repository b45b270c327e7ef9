"""What the maintainers need and users do not: it is not installed."""
