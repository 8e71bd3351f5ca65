"""Changes that make a run of `reverse` small enough for a test."""

SMALL = ("model.dim=16", "model.heads=2", "model.depth=1", "data.pairs=300", "train.batch_tokens=256", "train.save_every=5",
         "train.eval_every=10", "train.log_every=5")  # fmt: skip
