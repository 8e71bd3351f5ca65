"""7. Checkpoints of other libraries: import and export."""
