"""Sources, probing and decoding: from a path or URI to exact frames. Heavy imports happen where they are used."""
