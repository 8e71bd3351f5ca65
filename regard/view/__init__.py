"""6. Attention maps, drawings, and the cost of a model."""
