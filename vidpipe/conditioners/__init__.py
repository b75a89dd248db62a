"""Conditioners: columns beside a latent that cannot be derived from it; see `base`."""
