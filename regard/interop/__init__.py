"""7. Checkpoints of other projects, in and out."""
