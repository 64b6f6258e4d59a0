"""Where changes land: naming, schemas and Delta tables."""
