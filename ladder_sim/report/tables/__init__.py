"""The tables of answers that do not print themselves, a file per kind of answer."""
