"""Delta tables in one folder, and what is kept beside them; the only room that imports deltalake."""
