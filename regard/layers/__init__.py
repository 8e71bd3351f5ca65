"""2. What two models or more share: attention, masks, positions, blocks."""
