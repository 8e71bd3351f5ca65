"""Sound files and ready features → frames: one row of numbers for every few milliseconds."""
