"""What load generators write, a file for each generator: `ladder_sim.serving.requests.results` recognises which."""
