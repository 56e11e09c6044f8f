"""The configuration of ``sheafgossip demo``."""
