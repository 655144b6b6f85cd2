"""The Procrustes problems of ``kinds/orthogonal.py``."""

from ckptzoo.symmetry.kinds.orthogonal import greatest_products as greatest_products
from ckptzoo.symmetry.kinds.orthogonal import procrustes as procrustes
