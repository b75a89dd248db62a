"""The stages: functions from rows to rows, under a fingerprint. `vidpipe.engine` runs them."""
