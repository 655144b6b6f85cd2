"""The page of a zoo: one file with which to look at it in a browser, without any network.

building     ``page``: read what is shown, write the file
columns      figures and texts of the members
histograms   their bins
weights      principal components and marginals of layers
trajectories accuracies along the training
payload      columns to bytes
document     the HTML
bundle       script and style sheet, built from ``web/``
text         text of others in HTML
"""

from ckptzoo.explorer.building import Page, page

__all__ = ["Page", "page"]
