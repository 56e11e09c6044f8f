"""The work of the single commands: plan, watch, verify, theory."""
