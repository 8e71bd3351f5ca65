"""Multi-head attention: several small attentions side by side, what they cost, and what they are for."""
