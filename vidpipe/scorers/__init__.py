"""Scores of clips, a file each. `docs/scores.md` lists every column; `vidpipe.scorers.document` writes it."""
