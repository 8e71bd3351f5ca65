"""Public data sets in the formats of their official files: a reader for each format writes the files that `regard` reads."""
