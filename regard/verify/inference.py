"""Inference step by step: greedy and beam search, encoder and cache; published results."""
