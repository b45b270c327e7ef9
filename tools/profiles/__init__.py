"""Makes the shipped profiles of the package aiconfigurator-core, and fits engines' figures to measured servings."""
