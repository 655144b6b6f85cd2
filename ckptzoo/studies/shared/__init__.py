"""What all studies share: selecting from a zoo, results, histograms of weights, and the style of pictures."""
