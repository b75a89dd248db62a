"""The dataset on disk: Lance tables with one writer each, written by workers and committed once by a coordinator.

`dataset` opens and creates, `write` makes fragments that nobody sees, `lease` says who coordinates a stage, `commit`
makes units visible exactly once, `reconcile` completes what a crash cut off, `clean` and `verify` are upkeep. The
protocol and what was observed of Lance: docs/STORAGE-NOTES.md. Importing this package imports neither Lance nor DuckDB.
"""
