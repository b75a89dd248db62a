"""Processes, devices and how a model is spread over them."""
