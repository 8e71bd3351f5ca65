"""Attention for images beside ViT: convolutions with attention, local attention, pixels, Swin and MViT."""
