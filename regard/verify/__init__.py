"""Every claim of the lecture notes as a check that runs: what they say, what is expected, what is measured, and the verdict."""
