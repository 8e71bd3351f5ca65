"""Captions and speech: attention over the places of an image and the frames of a sound."""
