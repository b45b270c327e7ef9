"""Words and plain values that every answer is shown with: names and units, notes, JSON and CSV; nothing prints here."""
