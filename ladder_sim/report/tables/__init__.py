"""Answers as tables on a terminal, a file per kind of answer."""
