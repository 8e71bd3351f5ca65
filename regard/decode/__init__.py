"""4. From a model to an answer."""
