"""The rule of each operation, by the name of torch's operator, as in ``torch.ops.aten``."""

from ckptzoo.symmetry.tracing.rules import (
    elementwise,
    fourier,
    indexing,
    linear,
    normalization,
    products,
    recurrence,
    reduction,
    shape,
    weights,
)
from ckptzoo.symmetry.tracing.rules.elementwise import Rule

# Each rule with the names of its operators, those that end in an underscore for work in place left out.
_NAMES: dict[Rule, str] = {
    elementwise.homogeneous: "neg negative positive deg2rad rad2deg real imag conj _conj conj_physical resolve_conj",
    # in evaluation mode rrelu is a leaky ReLU with the mean of both slopes
    elementwise.positively_homogeneous: "relu leaky_relu rrelu",
    elementwise.absolute: "abs absolute",
    # round and trunc are odd (halves go to the even number), floor and ceil are not
    elementwise.odd: (
        "tanh sin tan asin arcsin atan arctan asinh arcsinh sinh atanh arctanh erf special_erf erfinv special_erfinv "
        "softshrink hardshrink round trunc fix special_i1 special_i1e special_bessel_j1"
    ),
    elementwise.not_homogeneous: (
        "gelu silu mish sigmoid special_expit hardsigmoid hardswish relu6 elu selu celu softplus log_sigmoid exp expm1 "
        "special_expm1 log log1p exp2 special_exp2 log2 log10 special_log1p logit special_logit acos arccos acosh "
        "arccosh floor ceil erfc special_erfc special_erfcx lgamma special_gammaln digamma special_digamma special_psi "
        "special_ndtr special_ndtri special_log_ndtr special_entr"
    ),
    elementwise.even: "cos cosh sinc special_sinc i0 special_i0 special_i0e special_bessel_j0",
    elementwise.sign: "sign sgn signbit angle isposinf isneginf",
    elementwise.finite: "isnan isinf isfinite isreal",
    elementwise.nan_to_num: "nan_to_num",
    elementwise.quantized: "fake_quantize_per_tensor_affine bucketize",
    elementwise.dropout: "dropout feature_dropout alpha_dropout feature_alpha_dropout",
    elementwise.softmax: "softmax log_softmax special_softmax special_log_softmax _softmax _log_softmax",
    elementwise.clamp: "hardtanh clamp clip clamp_min clamp_max",
    elementwise.threshold: "threshold",
    elementwise.prelu: "prelu",
    elementwise.pow_: "pow",
    elementwise.square: "square",
    elementwise.sqrt: "sqrt",
    elementwise.rsqrt: "rsqrt",
    elementwise.reciprocal: "reciprocal",
    elementwise.add: "add sub subtract rsub",
    elementwise.mul: "mul multiply",
    elementwise.div: "div divide true_divide",
    elementwise.floor_divide: "floor_divide",
    elementwise.remainder: "fmod remainder",
    # hypot, the root of a sum of squares, keeps positive factors of both as a maximum does
    elementwise.maximum_or_minimum: "maximum minimum fmax fmin hypot",
    elementwise.sum_without_scale: "logaddexp logaddexp2 isclose",
    elementwise.lerp: "lerp",
    elementwise.addcdiv: "addcdiv",
    reduction.sum_or_mean: "sum mean",
    reduction.max_or_min: "amax amin max min aminmax",
    reduction.position: "argmax argmin argsort",
    reduction.ordered: "sort topk kthvalue mode median nanmedian quantile nanquantile",
    reduction.cumulative: "cumsum cumprod cummax cummin logcumsumexp",
    reduction.without_scale: "logsumexp special_logsumexp prod all any count_nonzero",
    reduction.var_std_or_norm: "var std var_mean std_mean norm frobenius_norm linalg_vector_norm",
    reduction.pooling(elementwise.positively_homogeneous): (
        "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
        "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
    ),
    reduction.pooling(elementwise.homogeneous): (
        "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
        "upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ),
    reduction.unpool: "max_unpool2d max_unpool3d",
    reduction.sample: "grid_sampler grid_sampler_2d grid_sampler_3d",
    shape.copy_or_cast: "contiguous clone alias detach lift_fresh_copy to _to_copy type_as",
    shape.rearrange: (
        "view reshape flatten unflatten ravel permute transpose swapaxes swapdims movedim moveaxis t numpy_T mT "
        "squeeze unsqueeze expand expand_as view_as reshape_as broadcast_to repeat tile repeat_interleave flip fliplr "
        "flipud roll rot90 narrow slice select chunk split tensor_split split_with_sizes unbind "
        "pixel_shuffle pixel_unshuffle channel_shuffle unfold narrow_copy diagonal unsafe_split unsafe_chunk "
        "_unsafe_view fft_fftshift fft_ifftshift"
    ),
    indexing.index: "index _unsafe_index",
    indexing.index_select: "index_select",
    indexing.gather: "gather",
    indexing.scatter: "scatter scatter_add scatter_reduce",
    indexing.index_add: "index_add index_copy index_fill",
    indexing.index_put: "index_put _unsafe_index_put",
    fourier.transform: (
        "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn "
        "fft_ifftn fft_rfftn fft_irfftn"
    ),
    fourier.as_complex: "view_as_complex",
    fourier.as_real: "view_as_real",
    fourier.complex_: "complex",
    fourier.polar: "polar",
    shape.concatenate: "cat concat concatenate stack",
    shape.pad: "pad",
    shape.scatter: "slice_scatter select_scatter",
    shape.copy: "copy",
    elementwise.masked_fill: "masked_fill",
    elementwise.where: "where",
    elementwise.addcmul: "addcmul",
    # atan2 depends on the ratio and the signs of its arguments alone
    elementwise.compare: "gt lt ge le eq ne greater less greater_equal less_equal not_equal atan2 arctan2",
    elementwise.logical: (
        "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not __and__ __or__"
    ),
    linear.linear: "linear",
    linear.embedding: "embedding",
    linear.addmm: "addmm",
    linear.embedding_bag: "embedding_bag",
    linear.bilinear: "bilinear",
    linear.einsum: "einsum",
    recurrence.recurrent: "lstm gru rnn_tanh rnn_relu",
    recurrence.cell: "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    shape.glu: "glu",
    shape.unfold: "im2col",
    shape.fold: "col2im",
    products.scaled_dot_product_attention: "scaled_dot_product_attention",
    linear.matmul: "matmul mm bmm mv dot vdot",
    linear.convolution: "conv1d conv2d conv3d",
    linear.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    weights.of_weights_alone: "_weight_norm",
    normalization.batch_norm: "batch_norm",
    normalization.layer_norm: "layer_norm rms_norm",
    normalization.group_norm: "group_norm",
    normalization.instance_norm: "instance_norm",
}
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""The rule of every operation, by the operation's name."""
_LINEAR_NAMES = (
    "linear addmm matmul mm bmm einsum scaled_dot_product_attention embedding embedding_bag bilinear lstm gru rnn_tanh "
    "lstm_cell gru_cell rnn_tanh_cell neg negative positive deg2rad rad2deg cumsum "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d add sub subtract rsub sum mean dropout "
    "cat concat concatenate stack slice_scatter select_scatter copy pad index _unsafe_index index_select gather "
    "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn "
    "fft_irfftn view_as_complex view_as_real scatter_add index_add "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
_LINEAR = frozenset(_LINEAR_NAMES.split()) | {
    name for rule in (shape.copy_or_cast, shape.rearrange) for name in _NAMES[rule].split()
}
_FILL_NAMES = "zeros_like ones_like full_like new_zeros new_ones new_full new_empty empty_like fill zero"
FILLS = frozenset(_FILL_NAMES.split())
"""Operators whose result has a tensor's shape or kind and none of its numbers: constants in the trace."""
_CHECK_PREFIXES = (
    "_assert_",
    "_functional_assert",
    "_linalg_check_errors",
    "sym_constrain_range",
    "_functional_sym_constrain",
)


def is_linear(name: str, channels: int) -> bool:
    """Whether an operation is linear in the values that it takes, and alike for all their channels.

    The units of recurrent layers are not; their own scales, which are signs or none, show it. ``channels`` is the
    number of arguments with channels.
    """
    return name in _LINEAR or (name in ("mul", "multiply", "div", "divide", "true_divide") and channels < 2)


def is_known(name: str) -> bool:
    """Whether there is a rule for an operator, in place or not, or none is needed."""
    plain = name.removesuffix("_")
    return plain in RULES or plain in FILLS or is_check(name)


def is_check(name: str) -> bool:
    """Whether an operator is a check of shapes and dtypes, which torch.export adds, and computes nothing."""
    return name.startswith(_CHECK_PREFIXES)
