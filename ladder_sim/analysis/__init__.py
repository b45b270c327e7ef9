"""Answers that take many predictions: where a gain ends, what it hangs on, what to run, and which machine."""
