"""Feature superposition: more features than dimensions, and a sparse autoencoder that recovers them."""
