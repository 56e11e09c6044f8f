"""The processes of a run: the fork server, engines for one or several hosts, the collector."""
