"""The edges: sources, order, decode, collate, `DataLoader`."""
