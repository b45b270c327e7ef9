"""What every answer is shown with: tables of the console, names and units, JSON and CSV.

It lies below `ladder_sim.answer`, because a prediction prints itself.
"""
