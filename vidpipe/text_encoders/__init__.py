"""Text encoders behind one protocol; see `base`."""
