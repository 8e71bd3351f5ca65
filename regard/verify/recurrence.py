"""Recurrent networks with and without attention: the bottleneck, alignments, gates, and gradients over long distances."""
