"""Captioners, a file each; `vidpipe.registry.CAPTIONERS` names them."""
