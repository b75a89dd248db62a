"""Variational autoencoders behind one protocol; see `base`."""
