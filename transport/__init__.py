"""How vectors move between clients, and what that costs in bytes."""
