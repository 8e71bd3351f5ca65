"""The server and the explorer page."""
