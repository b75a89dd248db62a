"""From cached tables to packed batches: index, plan, read, collate, load."""
