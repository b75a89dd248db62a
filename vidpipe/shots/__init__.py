"""Shots: detectors that are pushed every frame at small size, and the rule that turns shots into clips."""
