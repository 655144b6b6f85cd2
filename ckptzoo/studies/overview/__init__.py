"""What does this zoo look like? Accuracies, marginals of the weights per layer, and two output weights together."""

from ckptzoo.studies.overview.study import Overview, overview

__all__ = ["Overview", "overview"]
