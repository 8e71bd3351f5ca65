"""How alike a query and a key are: dot product, additive, content or location, hard or soft; who attends to whom."""
