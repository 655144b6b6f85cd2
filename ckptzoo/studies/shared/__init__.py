"""What studies read of a zoo, a batch at a time, and what they need of it.

How results are shown: words, figures, pictures.
"""
