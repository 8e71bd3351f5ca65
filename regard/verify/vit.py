"""The Vision Transformer: patches, sizes, cost, and five drawbacks."""
