"""What every answer is shown with: tables of the console, names and units, JSON and CSV."""
