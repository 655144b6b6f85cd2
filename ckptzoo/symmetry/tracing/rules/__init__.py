"""Rules of the tracer: what each operation of a network does to channels and scales.

::

    registry       which operation has which rule, by its name; a new rule is entered there
    call           what a rule is given: the call of an operation, and the values that it is called with
    linear         linear layers, products with a parameter, convolutions
    normalization  batch, layer, group and instance norm
    elementwise    activations, powers, sums and products, entry by entry
    reduction      sums, means and maxima over axes, pooling
    shape          views, slices, permutations, concatenations, padding
"""
