"""Models as config.json files describe them: one table of types, one reader, one typed config, and kinds of layers."""
