"""What self-attention, recurrence and convolution cost: operations, sequential steps, and path lengths."""
