"""Models whose latencies are published, as lists of operators: batch 1, fp32, images of 224 x 224 unless named so.

Convolutional networks: He et al., 2016, arXiv:1512.03385, table 1 (a bottleneck's stride is in its 3x3 convolution, as
torchvision has it); Simonyan and Zisserman, 2015, arXiv:1409.1556, table 1; Huang et al., 2017, arXiv:1608.06993, table
1; Howard et al., 2017, arXiv:1704.04861, table 1; Sandler et al., 2018, arXiv:1801.04381, table 2; MobileNets of width
1.  Encoders: ViT-B/32 (Dosovitskiy et al., 2021, arXiv:2010.11929) and those of HAT (Wang et al., 2020,
arXiv:2005.14187).  Biases, batch norms and activations are fused into convolutions by the runtimes that were measured.
"""

from __future__ import annotations

from edgepeft.common.operators import OperatorClass, Work

_FLOAT = 4  # bytes


def convolution(
    name: str, channels: tuple[int, int], size: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Work:
    """``channels`` in and out, a square output of ``size``: 2 size^2 out (in / groups) kernel^2 FLOPs."""
    inputs, outputs = channels
    weights = outputs * (inputs // groups) * kernel * kernel
    kind = OperatorClass.CONV
    if kernel == stride and kernel > 1:
        kind = OperatorClass.MATRIX  # patches that do not overlap: one product
    elif groups > 1:
        kind = OperatorClass.CONV_DEPTHWISE
    elif (kernel, stride) == (3, 1):
        kind = OperatorClass.CONV_3X3
    read = _FLOAT * (inputs * (size * stride) ** 2 + weights)
    return Work(name, "Conv", kind, 2 * size * size * weights, read, _FLOAT * outputs * size**2, _FLOAT * weights)


def matrix(name: str, rows: int, inner: int, columns: int, *, times: int = 1, weights: bool = True) -> Work:
    """``times`` products of [rows, inner] with [inner, columns]; ``weights``: the second is a weight."""
    second = _FLOAT * times * inner * columns
    read, written = _FLOAT * times * rows * inner + second, _FLOAT * times * rows * columns
    flops = 2 * times * rows * inner * columns
    return Work(name, "MatMul", OperatorClass.MATRIX, flops, read, written, second if weights else 0)


def moved(name: str, op: str, kind: OperatorClass, elements: int, flops: int, *, inputs: int = 1) -> Work:
    """An operator on ``elements`` numbers of each of ``inputs`` values, ``flops`` for each."""
    return Work(name, op, kind, flops * elements, _FLOAT * inputs * elements, _FLOAT * elements)


_RESNET = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_BOTTLENECKS = {50, 101, 152}
_RESNET_WIDTHS = (64, 128, 256, 512)


def resnet(depth: int) -> tuple[Work, ...]:
    """18, 34, 50, 101 or 152 layers."""
    works = [convolution("stem", (3, 64), 112, kernel=7, stride=2)]
    wide = 4 if depth in _BOTTLENECKS else 1
    channels, size = 64, 56
    for stage, (n_blocks, width) in enumerate(zip(_RESNET[depth], _RESNET_WIDTHS, strict=True)):
        for block in range(n_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage.{stage}.block.{block}"
            make = _bottleneck if depth in _BOTTLENECKS else _basic
            works += make(name, channels, width, size, stride)
            size //= stride
            if channels != width * wide:
                works.append(convolution(f"{name}.shortcut", (channels, width * wide), size, kernel=1, stride=stride))
            channels = width * wide
    return (*works, matrix("classifier", 1, channels, 1000))


def _basic(name: str, channels: int, width: int, size: int, stride: int) -> list[Work]:
    """Two 3x3 convolutions."""
    return [
        convolution(f"{name}.0", (channels, width), size // stride, kernel=3, stride=stride),
        convolution(f"{name}.1", (width, width), size // stride, kernel=3),
    ]


def _bottleneck(name: str, channels: int, width: int, size: int, stride: int) -> list[Work]:
    """1x1 down, 3x3, 1x1 up."""
    return [
        convolution(f"{name}.0", (channels, width), size, kernel=1),
        convolution(f"{name}.1", (width, width), size // stride, kernel=3, stride=stride),
        convolution(f"{name}.2", (width, 4 * width), size // stride, kernel=1),
    ]


_VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_VGG_WIDTHS = (64, 128, 256, 512, 512)


def vgg(depth: int) -> tuple[Work, ...]:
    """11, 13, 16 or 19 layers."""
    works, channels, size = [], 3, 224
    for stage, (n_layers, width) in enumerate(zip(_VGG[depth], _VGG_WIDTHS, strict=True)):
        for layer in range(n_layers):
            works.append(convolution(f"stage.{stage}.{layer}", (channels, width), size, kernel=3))
            channels = width
        size //= 2
    features = channels * size * size
    heads = [(features, 4096), (4096, 4096), (4096, 1000)]
    return (*works, *(matrix(f"classifier.{i}", 1, inner, outer) for i, (inner, outer) in enumerate(heads)))


_DENSENET = (6, 12, 24, 16)
_GROWTH = 32


def densenet121() -> tuple[Work, ...]:
    """Growth 32; a transition halves channels and size."""
    works = [convolution("stem", (3, 64), 112, kernel=7, stride=2)]
    channels, size = 64, 56
    for stage, n_layers in enumerate(_DENSENET):
        for layer in range(n_layers):
            name = f"block.{stage}.{layer}"
            works.append(convolution(f"{name}.0", (channels, 4 * _GROWTH), size, kernel=1))
            works.append(convolution(f"{name}.1", (4 * _GROWTH, _GROWTH), size, kernel=3))
            channels += _GROWTH
        if stage < len(_DENSENET) - 1:
            works.append(convolution(f"transition.{stage}", (channels, channels // 2), size, kernel=1))
            channels, size = channels // 2, size // 2
    return (*works, matrix("classifier", 1, channels, 1000))


# (channels out, stride) of each depthwise separable pair.
_V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
# (expansion, channels out, repetitions, stride of the first) of each stage.
_V2 = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenet_v1() -> tuple[Work, ...]:
    """13 pairs of a depthwise 3x3 and a 1x1 convolution."""
    works = [convolution("stem", (3, 32), 112, kernel=3, stride=2)]
    channels, size = 32, 112
    for i, (outputs, stride) in enumerate(_V1):
        size //= stride
        works.append(convolution(f"pair.{i}.0", (channels, channels), size, kernel=3, stride=stride, groups=channels))
        works.append(convolution(f"pair.{i}.1", (channels, outputs), size, kernel=1))
        channels = outputs
    return (*works, matrix("classifier", 1, channels, 1000))


def mobilenet_v2() -> tuple[Work, ...]:
    """17 inverted residuals: 1x1 up, depthwise 3x3, 1x1 down."""
    works = [convolution("stem", (3, 32), 112, kernel=3, stride=2)]
    channels, size = 32, 112
    for stage, (expansion, outputs, repetitions, first) in enumerate(_V2):
        for block in range(repetitions):
            name, stride, wide = f"stage.{stage}.{block}", first if block == 0 else 1, channels * expansion
            if expansion > 1:
                works.append(convolution(f"{name}.up", (channels, wide), size, kernel=1))
            size //= stride
            works.append(convolution(f"{name}.depthwise", (wide, wide), size, kernel=3, stride=stride, groups=wide))
            works.append(convolution(f"{name}.down", (wide, outputs), size, kernel=1))
            channels = outputs
    works.append(convolution("last", (channels, 1280), size, kernel=1))
    return (*works, matrix("classifier", 1, 1280, 1000))


_HAT_LAYERS, _HAT_ATTENTION, _HAT_TOKENS = 6, 512, 30  # attention is 512 wide whatever the model's width


def vit_b32_384() -> tuple[Work, ...]:
    """12 layers, 768 wide, on 144 patches of 32 x 32 and a class token."""
    patches = convolution("patches", (3, 768), 12, kernel=32, stride=32)
    return patches, *encoder(12, 145, 768, 12, 3072), matrix("classifier", 1, 768, 1000)


def encoder(n_layers: int, tokens: int, width: int, heads: int, inner: int) -> tuple[Work, ...]:
    """BERT's layers, embeddings and head left out."""
    works: list[Work] = []
    for i in range(n_layers):
        works += _layer(f"layer.{i}", tokens=tokens, width=width, attention=width, heads=heads, inner=inner)
    return tuple(works)


def wmt_encoder(width: int, inner: float) -> tuple[Work, ...]:
    """One of HAT's encoders at 30 tokens; ``inner`` is the mean of its layers' feed-forward widths."""
    works: list[Work] = []
    for i in range(_HAT_LAYERS):
        # Widths differ from layer to layer, but the sum over layers is exact.
        before, after = round(inner * i), round(inner * (i + 1))
        works += _layer(
            f"layer.{i}", tokens=_HAT_TOKENS, width=width, attention=_HAT_ATTENTION, heads=8, inner=after - before
        )
    return tuple(works)


def _layer(name: str, *, tokens: int, width: int, attention: int, heads: int, inner: int) -> list[Work]:
    e, square = attention // heads, tokens * tokens * heads
    norm, softmax, elementwise = OperatorClass.NORM, OperatorClass.SOFTMAX, OperatorClass.ELEMENTWISE
    return [
        *(matrix(f"{name}.{part}", tokens, width, attention) for part in ("query", "key", "value")),
        matrix(f"{name}.scores", tokens, e, tokens, times=heads, weights=False),
        moved(f"{name}.softmax", "Softmax", softmax, square, 5),
        matrix(f"{name}.context", tokens, tokens, e, times=heads, weights=False),
        matrix(f"{name}.attention_output", tokens, attention, width),
        moved(f"{name}.attention_sum", "Add", elementwise, tokens * width, 1, inputs=2),
        moved(f"{name}.attention_norm", "LayerNormalization", norm, tokens * width, 7),
        matrix(f"{name}.ffn_up", tokens, width, inner),
        moved(f"{name}.activation", "Gelu", elementwise, tokens * inner, 5),
        matrix(f"{name}.ffn_output", tokens, inner, width),
        moved(f"{name}.ffn_sum", "Add", elementwise, tokens * width, 1, inputs=2),
        moved(f"{name}.layer_norm", "LayerNormalization", norm, tokens * width, 7),
    ]
