"""One configuration with many values and seeds: ``sheafgossip sweep``."""
