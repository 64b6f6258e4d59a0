"""Databases that speak PostgreSQL's protocol: their catalog, and their rows as change records write them.

Needs the extra `postgres`; nothing else in headpond imports psycopg.
"""
