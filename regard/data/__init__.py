"""1. Raw files → tensors."""
