"""What neighbours learn from the messages of a run: what they are sent, and attacks on that."""
