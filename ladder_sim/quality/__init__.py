"""What models with other wirings lose or gain in quality, as published: `published` reads the figures."""
