"""Stage 2: does a row pass, and as what. Rows in, rows out."""
