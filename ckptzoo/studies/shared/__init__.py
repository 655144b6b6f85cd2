"""Parts shared by all studies: selecting from a zoo, results, histograms of weights, and the style of pictures."""
