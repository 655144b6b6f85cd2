"""How results are shown: words, figures, pictures."""
