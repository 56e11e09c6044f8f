"""The package itself; its rooms are imported by name, such as sheafgossip.metrics."""
