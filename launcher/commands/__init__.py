"""What each command does; ``cli`` declares them."""
