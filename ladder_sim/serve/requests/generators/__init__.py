"""What load generators write, a file for each generator: `ladder_sim.serve.requests.results` recognises which."""
