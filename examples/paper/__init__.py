"""Configurations of the tables and figures of the paper of Sheaf-FMTL, for `sheafgossip reproduce`."""
