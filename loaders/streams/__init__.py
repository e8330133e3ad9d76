"""The balanced mode over streams, whose samples are only seen as they come (`IterableDataset`)."""
