"""The report of a sweep: one self-contained page, its figures, tables and findings."""
