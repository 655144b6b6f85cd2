"""What the server keeps: bytes in files, everything else in one SQLite database. Knows no HTTP."""
