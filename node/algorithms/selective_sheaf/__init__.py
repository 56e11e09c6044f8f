"""Selective sheaf: the method, what a client knows of an edge, and how it looks for better neighbours."""
