"""Images: files and folders → stored squares → augmented batches."""
