"""A report on the user's own lengths: `gather` computes it, `page` shows it. Reads no files, writes none."""
