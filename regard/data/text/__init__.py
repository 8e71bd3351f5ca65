"""Text: files → tokens → stored corpora → batches."""
