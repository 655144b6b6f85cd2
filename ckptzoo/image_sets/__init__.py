"""Data sets of images, in every form that they are published in, as arrays of pixels and labels.

::

    lookup            which are known; find (on this machine: "svhn", "svhn/test-10000"), load (or fetched)
    image_set         ImageSet, what is known of a set before it is read, pixels as networks see them
    class_names       names of classes in the order of labels
    evaluation        a test set and the scaling of its pixels, as rows say it

    idx               MNIST, Fashion-MNIST                              digits   scikit-learn's
    npz               any set as .npz, whole or in parts                svhn     .mat
    cifar             rows of bytes, and CIFAR-10-C and CIFAR-100-C     tables   datasets and its Parquet files
    picture_folders   TinyImageNet, Textures; pictures decodes JPEG and PNG, and keeps what was decoded

Pixels are (N, C, H, W) uint8 everywhere. Files are untrusted: nothing is unpickled, and what a file unpacks to is
bounded before it is unpacked. An error names the file, what was expected, what was found, and what to do next.
"""

from ckptzoo.image_sets.cifar import CORRUPTIONS, EXTRA_CORRUPTIONS, STANDARD_CORRUPTIONS
from ckptzoo.image_sets.image_set import FOLDER_VARIABLE, Images, ImageSet, Labels, network_inputs
from ckptzoo.image_sets.lookup import (
    KNOWN,
    TRAINING_SETS,
    find,
    find_corrupted,
    folder_of,
    halves_from,
    has_training_set,
    load,
    load_halves,
)

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "FOLDER_VARIABLE",
    "KNOWN",
    "STANDARD_CORRUPTIONS",
    "TRAINING_SETS",
    "ImageSet",
    "Images",
    "Labels",
    "find",
    "find_corrupted",
    "folder_of",
    "halves_from",
    "has_training_set",
    "load",
    "load_halves",
    "network_inputs",
]
