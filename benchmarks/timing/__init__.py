"""What clients measure of a server whose times are known."""
