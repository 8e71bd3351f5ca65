"""Batch norm against layer norm, with padding; residuals."""
