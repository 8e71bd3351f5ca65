"""Attention and the order of tokens: equivariance, masks, and the lecture's table of six words."""
