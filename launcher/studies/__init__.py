"""Several runs that belong together: a session, a sweep, the reproduction of a paper."""
