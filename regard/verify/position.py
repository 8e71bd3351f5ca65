"""How a model knows positions: the sinusoid, its binary analogy, relative offsets, and other ways."""
