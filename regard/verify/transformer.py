"""The Transformer of 2017: layers, stacks, sizes, masks, training with teacher forcing."""
