"""The shape of the model a server serves: what one step computes and reads, from ``config.json`` or GGUF metadata.

For a dense model with a gated MLP, per layer ``D (q + 2 kv) d + q d D + 3 D I`` matrix parameters, and once the LM
head ``D V``; the embedding is a lookup and counts only where it serves as the head too. KV cache per token:
``2 x layers x kv heads x head size x bytes``.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scripts.harness.errors import SweepError

FLOAT_BYTES = {"float16": 2.0, "bfloat16": 2.0, "half": 2.0, "float": 4.0, "float32": 4.0}
# block formats of llama.cpp: bytes of a block over its values
KV_BYTES = FLOAT_BYTES | {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_inc": 1.0, "int8": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class ModelShape:
    """A model as served. Parameters are counts; the names of the first nine fields are those of ``context.json``.

    ``dtype_bytes``: mean bytes of a matrix parameter (``weight_bytes`` / ``matmul_parameters``);
    ``matmul_parameters``: all that a full batch multiplies with (layers, every expert, LM head);
    ``active_parameters``: those one token is multiplied with (equal unless there are experts);
    ``weight_bytes``: the matrices as served, read once a step; ``total_weight_bytes``: with embedding and norms;
    ``kv_bytes_per_token``: every layer keeping every token (an upper bound with a sliding window);
    ``sliding_window``, ``sliding_layers``: tokens, and layers that keep only those; None: no such layer;
    ``assumptions``: what was not said in the file, in words.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dtype_bytes: float
    kv_dtype_bytes: float
    matmul_parameters: int
    active_parameters: int
    weight_bytes: int
    kv_bytes_per_token: float
    activation_dtype_bytes: float
    architecture: str
    source: str
    total_parameters: int | None = None
    total_weight_bytes: int | None = None
    tied_embeddings: bool | None = None
    kv_layers: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    sliding_window: int | None = None
    sliding_layers: int | None = None
    quantization: str | None = None
    assumptions: tuple[str, ...] = ()
    tensor_bytes: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values: ``model`` of ``context.json``."""
        return asdict(self) | {"assumptions": list(self.assumptions)}


DIMENSIONS = ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab")
PATCHES = (
    "dtype_bytes", "kv_dtype_bytes", "matmul_parameters", "active_parameters", "weight_bytes", "kv_bytes_per_token",
    "activation_dtype_bytes", "total_parameters", "total_weight_bytes", "experts", "experts_per_token",
    "sliding_window", "sliding_layers",
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """How a ``model_type`` builds its layers: matrices of an MLP (3 gated, 2 plain), norm vectors a layer and their
    size relative to the hidden one (2: with bias), norms over a head's queries and keys, biases, and the defaults of
    keys that its ``config.json`` leaves out."""

    mlp: int = 3
    tied: bool = False
    norms: int = 2
    norm_vectors: int = 1
    head_norms: bool = False
    qkv_bias: bool = False
    all_bias: bool = False
    head_dim: int | None = None
    window: str = "none"  # none | all | alternate | pattern | upper (see _window)


FAMILIES = {
    "llama": Family(),
    "mistral": Family(window="all"),
    "ministral": Family(window="all"),
    "mixtral": Family(window="all"),
    "qwen2": Family(qkv_bias=True, window="upper"),
    "qwen2_moe": Family(qkv_bias=True, window="upper"),
    "qwen3": Family(head_norms=True, window="upper"),
    "qwen3_moe": Family(head_norms=True, window="upper"),
    "gemma": Family(tied=True, head_dim=256),
    "gemma2": Family(tied=True, norms=4, head_dim=256, window="alternate"),
    "gemma3_text": Family(tied=True, norms=4, head_norms=True, head_dim=256, window="pattern"),
    "phi3": Family(window="all"),
    "smollm3": Family(tied=True, window="upper"),
    "granite": Family(),
    "starcoder2": Family(mlp=2, tied=True, norm_vectors=2, all_bias=True, window="all"),
    "opt": Family(mlp=2, tied=True, norm_vectors=2, all_bias=True),
    "gpt_oss": Family(all_bias=True, window="alternate"),
}


def from_config_json(
    source: str | Path | Mapping[str, Any],
    dtype: str | None = None,
    kv_cache_dtype: str = "auto",
    override: Mapping[str, Any] | None = None,
) -> ModelShape:
    """Read a Hugging Face ``config.json`` (path, its folder, or the parsed object).

    ``dtype``: what the server computes in, if not what the file says; ``kv_cache_dtype``: as the server was told
    (``auto``: like ``dtype``). ``override``: see ``overridden``. Raises SweepError for an architecture or a
    quantization that is not known here: it is not guessed.
    """
    config, where = _load(source)
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    kind = str(text.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        raise SweepError(
            f"{where}: model_type {kind!r} is not known; known are {', '.join(sorted(FAMILIES))}. "
            f"Give the model's numbers in the config instead: model_shape: {{{', '.join(DIMENSIONS)}, dtype_bytes}}"
        )
    get = _Getter(text, where)
    hidden, heads = get.whole("hidden_size"), get.whole("num_attention_heads")
    layers, vocab = get.whole("num_hidden_layers"), get.whole("vocab_size")
    kv_heads = get.whole("num_key_value_heads", heads)
    head_dim = get.whole("head_dim", family.head_dim if family.head_dim is not None else _divided(hidden, heads, where))
    if get.whole("word_embed_proj_dim", hidden) != hidden:
        raise SweepError(f"{where}: word_embed_proj_dim differs from hidden_size {hidden}: that is not known here")
    tied = bool(text.get("tie_word_embeddings", family.tied))
    moe = _experts(get, kind, layers)
    name, given = _dtype(text, dtype, where)
    kv_bytes = _kv_bytes(name if kv_cache_dtype == "auto" else kv_cache_dtype)

    attention = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden
    dense_size = get.whole("ffn_dim" if kind == "opt" else "intermediate_size")
    dense_mlp = family.mlp * hidden * dense_size
    head = hidden * vocab
    sparse = moe.layers
    router = sparse * (hidden * moe.experts + (hidden if moe.shared else 0))
    routed = sparse * moe.experts * family.mlp * hidden * moe.size
    chosen = sparse * moe.per_token * family.mlp * hidden * moe.size
    shared = sparse * family.mlp * hidden * moe.shared
    plain = layers * attention + (layers - sparse) * dense_mlp + shared
    matmul = plain + router + routed + head
    active = plain + router + chosen + head

    quant = _quantization(config, where)
    width = FLOAT_BYTES[name]
    weight = round(
        (width if quant.experts_only else quant.bytes(width)) * plain
        + quant.bytes(width) * routed
        + width * router
        + (quant.bytes(width) if quant.head else width) * head
    )
    vectors = _vectors(family, kind, get, layers=layers, moe=moe, dense_size=dense_size)
    positions = hidden * (get.whole("max_position_embeddings") + 2) if kind == "opt" else 0
    other = (0 if tied else head) + vectors + positions
    window, sliding = _window(text, family, layers)
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=moe.size if sparse else dense_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        dtype_bytes=weight / matmul,
        kv_dtype_bytes=kv_bytes,
        matmul_parameters=matmul,
        active_parameters=active,
        weight_bytes=weight,
        kv_bytes_per_token=2 * layers * kv_heads * head_dim * kv_bytes,
        activation_dtype_bytes=width,
        architecture=kind,
        source="config.json",
        total_parameters=matmul + other,
        total_weight_bytes=weight + round(width * other),
        tied_embeddings=tied,
        kv_layers=layers,
        experts=moe.experts if sparse else None,
        experts_per_token=moe.per_token if sparse else None,
        sliding_window=window,
        sliding_layers=sliding,
        quantization=quant.name,
        assumptions=(*given, *quant.assumptions),
    )
    return overridden(shape, override)


def from_gguf(
    path: str | Path,
    kv_cache_dtype: str | tuple[str, str] = "f16",
    override: Mapping[str, Any] | None = None,
) -> ModelShape:
    """Read a GGUF file (or the first file of a split one): bytes are those of its tensors.

    ``kv_cache_dtype``: llama.cpp's type of the cache, or one for keys and one for values.
    """
    first = Path(path)
    readers = [_open_gguf(part) for part in _parts(first)]
    fields = readers[0].fields
    arch = _field(fields, "general.architecture", first)

    def key(name: str, default: Any = None) -> Any:
        return _field(fields, f"{arch}.{name}", first, default)

    tensors = {str(tensor.name): tensor for reader in readers for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise SweepError(f"{first.name}: no tensor token_embd.weight; expected the GGUF of a text model, not {arch!r}")
    layers, hidden = int(key("block_count")), int(key("embedding_length"))
    heads = _per_layer(key("attention.head_count"), layers)
    kv_heads = _per_layer(key("attention.head_count_kv", max(heads)), layers)
    key_length = int(key("attention.key_length", hidden // max(heads)))
    value_length = int(key("attention.value_length", hidden // max(heads)))
    if key("attention.kv_lora_rank", 0) and "kv_bytes_per_token" not in (override or {}):
        raise SweepError(
            f"{first.name}: {arch} keeps compressed keys and values; say what a token takes in the config: "
            "model_shape: {kv_bytes_per_token: …}"
        )
    tied = "output.weight" not in tensors
    head = tensors["token_embd.weight" if tied else "output.weight"]
    matrices = [head, *(t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) >= 2)]
    experts, used = int(key("expert_count", 0)), int(key("expert_used_count", 0))
    routed = sum(int(t.n_elements) for t in matrices if "_exps." in str(t.name))
    matmul = sum(int(t.n_elements) for t in matrices)
    weight = sum(int(t.n_bytes) for t in matrices)
    kinds: dict[str, int] = {}
    for tensor in matrices:
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    types = (kv_cache_dtype, kv_cache_dtype) if isinstance(kv_cache_dtype, str) else kv_cache_dtype
    key_bytes, value_bytes = (_kv_bytes(kind) for kind in types)
    kv = sum(kv_heads) * (key_length * key_bytes + value_length * value_bytes)
    window = int(key("attention.sliding_window", 0))
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=max(_per_layer(key("expert_feed_forward_length", key("feed_forward_length")), layers)),
        heads=max(heads),
        kv_heads=max(kv_heads),
        head_dim=key_length,
        vocab=int(tensors["token_embd.weight"].shape[1]),
        dtype_bytes=weight / matmul,
        kv_dtype_bytes=kv / (sum(kv_heads) * (key_length + value_length)) if sum(kv_heads) else 0.0,
        matmul_parameters=matmul,
        active_parameters=matmul - (routed - routed * used // experts if experts else 0),
        weight_bytes=weight,
        kv_bytes_per_token=kv,
        activation_dtype_bytes=4.0,
        architecture=str(arch),
        source="gguf",
        total_parameters=sum(int(t.n_elements) for t in tensors.values()),
        total_weight_bytes=sum(int(t.n_bytes) for t in tensors.values()),
        tied_embeddings=tied,
        kv_layers=sum(count > 0 for count in kv_heads),
        experts=experts if experts else None,
        experts_per_token=used if experts else None,
        sliding_window=window if window else None,
        sliding_layers=None,
        quantization=max(kinds, key=lambda kind: kinds[kind]),
        assumptions=("which layers use the sliding window is not in the file",) if window else (),
        tensor_bytes=kinds,
    )
    return overridden(shape, override)


def from_values(values: Mapping[str, Any]) -> ModelShape:
    """Make the shape of a dense model with a gated MLP from the keys of ``context.json``'s ``model``: the seven
    dimensions, ``dtype_bytes`` and ``kv_dtype_bytes`` (2 each if left out); derived numbers given beside them win."""
    missing = [name for name in DIMENSIONS if values.get(name) is None]
    if missing:
        raise SweepError(f"model shape: {', '.join(missing)} missing; give all of {', '.join(DIMENSIONS)}")
    n = {name: int(values[name]) for name in DIMENSIONS}
    width, kv_width = (float(values.get(name, 2)) for name in ("dtype_bytes", "kv_dtype_bytes"))
    attention = n["hidden"] * (n["heads"] + 2 * n["kv_heads"]) * n["head_dim"]
    output = n["heads"] * n["head_dim"] * n["hidden"]
    layer = attention + output + 3 * n["hidden"] * n["intermediate"]
    matmul = n["layers"] * layer + n["hidden"] * n["vocab"]
    shape = ModelShape(
        layers=n["layers"],
        hidden=n["hidden"],
        intermediate=n["intermediate"],
        heads=n["heads"],
        kv_heads=n["kv_heads"],
        head_dim=n["head_dim"],
        vocab=n["vocab"],
        dtype_bytes=width,
        kv_dtype_bytes=kv_width,
        matmul_parameters=matmul,
        active_parameters=matmul,
        weight_bytes=round(width * matmul),
        kv_bytes_per_token=2 * n["layers"] * n["kv_heads"] * n["head_dim"] * kv_width,
        activation_dtype_bytes=2.0,
        architecture="dense, gated MLP",
        source="config",
        kv_layers=n["layers"],
    )
    return overridden(shape, {key: value for key, value in values.items() if key not in DIMENSIONS})


def overridden(shape: ModelShape, override: Mapping[str, Any] | None) -> ModelShape:
    """Return ``shape`` with numbers of the config in place of its own. All seven dimensions make a shape of their own
    (``from_values``); otherwise only derived numbers can be set, since the dimensions hang together."""
    given = {} if override is None else {key: value for key, value in override.items() if value is not None}
    if set(DIMENSIONS) <= set(given):
        return from_values(given)
    for key, value in given.items():
        if key not in PATCHES:
            raise SweepError(
                f"model shape: {key!r} cannot be set alone; set {', '.join(PATCHES)}, or all of {', '.join(DIMENSIONS)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise SweepError(f"model shape: {key} must be a number above 0, not {value!r}")
    if not given:
        return shape
    changed = replace(shape, **given, assumptions=(*shape.assumptions, f"from the config: {', '.join(sorted(given))}"))
    # what follows from a number that was set, unless it was set too
    if "dtype_bytes" in given and "weight_bytes" not in given:
        changed = replace(changed, weight_bytes=round(changed.dtype_bytes * changed.matmul_parameters))
    elif "dtype_bytes" not in given:
        changed = replace(changed, dtype_bytes=changed.weight_bytes / changed.matmul_parameters)
    if "kv_dtype_bytes" in given and "kv_bytes_per_token" not in given:
        scale = changed.kv_dtype_bytes / shape.kv_dtype_bytes
        changed = replace(changed, kv_bytes_per_token=shape.kv_bytes_per_token * scale)
    return changed


def of_model(
    model: str | Path,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    override: Mapping[str, Any] | None = None,
) -> ModelShape | None:
    """Return the shape of the model a server was given: a GGUF file, a folder, or a Hugging Face name whose files are
    in the local cache. None when nothing local says it and ``override`` does not give it all."""
    if override is not None and set(DIMENSIONS) <= set(override):
        return from_values(override)
    found = find(model)
    if found is None:
        return None
    if found.suffix == ".gguf":
        return from_gguf(found, "f16" if kv_cache_dtype in (None, "auto") else str(kv_cache_dtype), override)
    return from_config_json(found, dtype, "auto" if kv_cache_dtype is None else kv_cache_dtype, override)


def find(model: str | Path) -> Path | None:
    """Return the GGUF file or the ``config.json`` of ``model``, or None. No network."""
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
    cache = Path(os.environ.get("HF_HUB_CACHE", home)) / f"models--{str(model).replace('/', '--')}"
    main = cache / "refs" / "main"
    if main.is_file():
        config = cache / "snapshots" / main.read_text().strip() / "config.json"
        return config if config.is_file() else None
    return next(iter(sorted(cache.glob("snapshots/*/config.json"))), None)


# --- config.json -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Getter:
    config: Mapping[str, Any]
    where: str

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise SweepError(f"{self.where}: expected a whole number for {key!r}, found {value!r}")
        return value


@dataclass(frozen=True)
class _Experts:
    """``layers`` have ``experts`` of ``size``, ``per_token`` of them chosen, and a shared one of size ``shared``."""

    layers: int = 0
    experts: int = 0
    per_token: int = 0
    size: int = 0
    shared: int = 0


@dataclass(frozen=True)
class _Quantization:
    """``bits`` of a parameter with its share of scales and zero points; None: as the model's dtype."""

    name: str | None = None
    bits: float | None = None
    experts_only: bool = False
    head: bool = False
    assumptions: tuple[str, ...] = ()

    def bytes(self, width: float) -> float:
        return width if self.bits is None else self.bits / 8


def _load(source: str | Path | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    if isinstance(source, Mapping):
        return source, "config.json"
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SweepError(f"{path.name}: expected a Hugging Face config.json; {type(error).__name__}: {error}") from None
    if not isinstance(loaded, dict):
        raise SweepError(f"{path.name}: expected a JSON object, found {type(loaded).__name__}")
    return loaded, path.name


def _divided(hidden: int, heads: int, where: str) -> int:
    if heads <= 0 or hidden % heads:
        raise SweepError(f"{where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; head_dim?")
    return hidden // heads


def _dtype(text: Mapping[str, Any], asked: str | None, where: str) -> tuple[str, tuple[str, ...]]:
    said = text.get("dtype", text.get("torch_dtype"))
    chosen = said if asked in (None, "auto") else asked
    name = str(chosen).removeprefix("torch.")
    if name not in FLOAT_BYTES:
        raise SweepError(
            f"{where}: the model's dtype is {chosen!r}; give the one it is served in: {', '.join(FLOAT_BYTES)}"
        )
    if asked in (None, "auto") and FLOAT_BYTES[name] == 4:
        return name, ("served as float32, as the file says; servers may cast to 16 bits",)
    return name, ()


def _kv_bytes(kind: str) -> float:
    if kind not in KV_BYTES:
        raise SweepError(f"KV cache type {kind!r} is not known; known are {', '.join(KV_BYTES)}")
    return KV_BYTES[kind]


def _experts(get: _Getter, kind: str, layers: int) -> _Experts:
    match kind:
        case "mixtral" | "gpt_oss":
            per_token = get.whole("num_experts_per_tok", get.config.get("experts_per_token"))
            return _Experts(layers, get.whole("num_local_experts"), per_token, get.whole("intermediate_size"))
        case "qwen2_moe" | "qwen3_moe":
            step = get.whole("decoder_sparse_step", 1)
            dense = set(get.config.get("mlp_only_layers") or [])
            sparse = sum((n + 1) % step == 0 and n not in dense for n in range(layers))
            shared = get.whole("shared_expert_intermediate_size", 0) if kind == "qwen2_moe" else 0
            size = get.whole("moe_intermediate_size")
            return _Experts(sparse, get.whole("num_experts"), get.whole("num_experts_per_tok"), size, shared)
        case _:
            return _Experts()


def _vectors(family: Family, kind: str, get: _Getter, *, layers: int, moe: _Experts, dense_size: int) -> int:
    """Return the parameters that are no matrix: norms and biases."""
    hidden, heads = get.whole("hidden_size"), get.whole("num_attention_heads")
    kv_heads = get.whole("num_key_value_heads", heads)
    head_dim = get.whole("head_dim", family.head_dim if family.head_dim is not None else hidden // heads)
    norms = (family.norms * layers + 1) * hidden * family.norm_vectors
    norms += 2 * layers * head_dim if family.head_norms else 0
    qkv = (heads + 2 * kv_heads) * head_dim
    bias = 0
    if family.all_bias or get.config.get("attention_bias") is True:
        bias = layers * (qkv + hidden)
    elif family.qkv_bias:
        bias = layers * qkv
    if family.all_bias and not moe.layers:
        bias += layers * (dense_size + hidden)
    if kind == "gpt_oss":  # biases of router and experts, one attention sink a head
        bias += layers * (moe.experts * (1 + 2 * moe.size + hidden) + heads)
    return norms + bias


def _window(text: Mapping[str, Any], family: Family, layers: int) -> tuple[int | None, int | None]:
    """Return (tokens of the sliding window, layers that have it)."""
    window = text.get("sliding_window")
    if window is None or family.window == "none":
        return None, None
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        count = sum(kind == "sliding_attention" for kind in kinds)
    elif family.window == "upper":
        # layers from max_window_layers on, and only if switched on
        count = max(0, layers - int(text.get("max_window_layers", layers))) if text.get("use_sliding_window") else 0
    elif family.window == "alternate":
        count = (layers + 1) // 2
    elif family.window == "pattern":
        count = layers - layers // int(text.get("sliding_window_pattern", 6))
    else:
        count = layers
    return (int(window), count) if count else (None, None)


def _quantization(config: Mapping[str, Any], where: str) -> _Quantization:
    """Read ``quantization_config``. Scales are counted (16 bits a group, zero points as wide as a weight)."""
    quant = config.get("quantization_config")
    if quant is None:
        return _Quantization()
    method = str(quant.get("quant_method"))
    skipped = quant.get("modules_to_not_convert") or quant.get("ignore") or quant.get("ignored_layers") or []
    others = [name for name in skipped if "lm_head" not in str(name)]
    kept = (f"{len(others)} entries kept from quantization are counted as quantized",) if others else ()
    unknown = SweepError(
        f"{where}: quantization {method!r} ({_short(quant)}) is not known; say in the config what a matrix parameter "
        "takes: model_shape: {dtype_bytes: …}"
    )
    match method:
        case "awq" | "gptq":
            bits, group = int(quant.get("bits", quant.get("w_bit", 4))), int(quant.get("group_size", 128))
            extra = (16 + bits) / group if group > 0 else 0.0
            return _Quantization(method, bits + extra, head=bool(quant.get("lm_head", False)), assumptions=kept)
        case "fp8" | "fbgemm_fp8":
            block = quant.get("weight_block_size")
            return _Quantization(method, 8 + (32 / (block[0] * block[1]) if block else 0.0), assumptions=kept)
        case "mxfp4":
            return _Quantization(method, 4 + 8 / 32, experts_only=True)
        case "bitsandbytes":
            if quant.get("load_in_4bit"):
                extra = 8 / 64 + 32 / (64 * 256) if quant.get("bnb_4bit_use_double_quant") else 32 / 64
                return _Quantization(method, 4 + extra, assumptions=kept)
            if quant.get("load_in_8bit"):
                return _Quantization(method, 8.0, assumptions=kept)
            raise unknown
        case "modelopt":
            algorithm = str(quant.get("quant_algo", quant.get("quantization", {}).get("quant_algo")))
            bits_of = {"FP8": 8.0, "NVFP4": 4 + 8 / 16}
            if algorithm not in bits_of:
                raise unknown
            return _Quantization(f"{method} {algorithm}", bits_of[algorithm], assumptions=kept)
        case "compressed-tensors":
            return replace(_compressed(quant, unknown), assumptions=kept)
        case _:
            raise unknown


def _compressed(quant: Mapping[str, Any], unknown: SweepError) -> _Quantization:
    groups = quant.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    if len(weights) != 1 or not isinstance(weights[0], dict) or not isinstance(weights[0].get("num_bits"), int):
        raise unknown
    bits, size = float(weights[0]["num_bits"]), weights[0].get("group_size")
    scale = 8 if bits == 4 and weights[0].get("type") == "float" else 16
    extra = scale / size if isinstance(size, int) and size > 0 else 0.0
    return _Quantization(f"compressed-tensors {quant.get('format', '')}".strip(), bits + extra)


def _short(quant: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in quant.items() if isinstance(value, str | int | float))[:200]


# --- GGUF ------------------------------------------------------------------------------------------------------------


def _open_gguf(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise SweepError("the Python package gguf is needed to read a GGUF model's shape; install gguf") from None
    try:
        return GGUFReader(str(path))
    except (OSError, ValueError) as error:
        raise SweepError(f"{path.name}: expected a GGUF file; {type(error).__name__}: {error}") from None


def _parts(first: Path) -> list[Path]:
    """Return all files of a model that is split as ``NAME-00001-of-00003.gguf``."""
    found = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", first.name)
    if found is None:
        return [first]
    stem, _, count = found.groups()
    return [first.with_name(f"{stem}-{n:05d}-of-{count}.gguf") for n in range(1, int(count) + 1)]


def _field(fields: Mapping[str, Any], name: str, path: Path, default: Any = None) -> Any:
    if name in fields:
        return fields[name].contents()
    if default is None:
        raise SweepError(f"{path.name}: the GGUF metadata has no {name}")
    return default


def _per_layer(value: int | Iterable[int], layers: int) -> Sequence[int]:
    """Return one number a layer: some models differ from layer to layer."""
    return [int(value)] * layers if isinstance(value, int) else [int(item) for item in value]


def main(argv: list[str] | None = None) -> int:
    """Print the shape of a model (GGUF file, folder or config.json) as JSON."""
    parser = argparse.ArgumentParser(prog="python -m scripts.harness.model_shape", description=main.__doc__)
    parser.add_argument("model", help="GGUF file, folder with a config.json, or a name in the local cache")
    parser.add_argument("--dtype", help="what it is served in, if not what its file says")
    parser.add_argument("--kv-cache-dtype", help="type of the KV cache, as the server is told")
    asked = parser.parse_args(argv)
    try:
        shape = of_model(asked.model, asked.dtype, asked.kv_cache_dtype)
        if shape is None:
            raise SweepError(
                f"{asked.model}: neither a GGUF file nor a folder with a config.json, nor in the local cache"
            )
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(shape.as_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
