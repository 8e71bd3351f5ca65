"""6. What attention looked at, and what it costs."""
