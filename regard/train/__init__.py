"""5. From a model and batches to a checkpoint."""
