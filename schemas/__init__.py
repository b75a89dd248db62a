"""The contract between vidpipe and trainer: ids, tables, buckets, latent spaces, outcomes, expressions, configuration.

Depends on pyarrow alone. Both packages import it; neither imports the other.
"""

SCHEMA_VERSION = 1
"""Integer in every table's metadata. Raised when a reader of the old layout would misread the new one."""
