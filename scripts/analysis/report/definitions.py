"""What each number is: label, unit, decimals, formula, inputs and the file it comes from. One formatter a metric."""

from dataclasses import dataclass

_REQUESTS = "requests.parquet"
_CHUNKS = "chunks.parquet"
_SCRAPES = "scrapes.parquet"
_TELEMETRY = "telemetry.parquet"
_LOG = "startup.log"
_DERIVED = "derived.json"


@dataclass(frozen=True)
class Definition:
    """A number of the report: ``label`` and ``formula`` are (English, Chinese)."""

    key: str
    label: tuple[str, str]
    unit: str
    decimals: int
    formula: tuple[str, str]
    source: str
    inputs: tuple[str, ...] = ()


def _d(
    key: str,
    label: tuple[str, str],
    unit: str,
    decimals: int,
    formula: tuple[str, str],
    source: str,
    *inputs: str,
) -> Definition:
    return Definition(key, label, unit, decimals, formula, source, inputs)


_SAME = "linear interpolation over the pooled samples"
_SAME_ZH = "对合并样本线性插值"

_ALL = (
    _d(
        "C",
        ("C", "并发"),
        "",
        0,
        ("concurrency: requests in flight, closed loop", "并发:闭环下在飞的请求数"),
        "cell.json",
    ),
    _d(
        "requests",
        ("Requests", "请求数"),
        "",
        0,
        ("requests of the level, warm-up apart", "该档请求数,不含预热"),
        _REQUESTS,
    ),
    _d("requests_ok", ("Succeeded", "成功"), "", 0, ("requests that ended whole", "完整结束的请求"), _REQUESTS),
    _d("requests_failed", ("Failed", "失败"), "", 0, ("requests − succeeded", "请求数 − 成功"), _REQUESTS),
    _d(
        "duration_s",
        ("Duration, s", "耗时 s"),
        "s",
        1,
        (
            "from before the first request is released to after the last one ends",
            "从首个请求发出前到最后一个请求结束后",
        ),
        _REQUESTS,
    ),
    _d(
        "output_tok_s",
        ("Output tok/s", "输出 tok/s"),
        "tok/s",
        1,
        ("output tokens of successful requests / wall clock of the level", "成功请求的输出 token 总数 ÷ 该档墙钟时间"),
        _REQUESTS,
        "output_tokens",
        "duration_s",
    ),
    _d("scaling_gain", ("Gain, ×", "增益 ×"), "×", 1, ("T(C) / T(1)", "T(C) ÷ T(1)"), _DERIVED, "output_tok_s"),
    _d(
        "scaling_efficiency_pct",
        ("Efficiency, %", "效率 %"),
        "%",
        1,
        ("T(C) / (C × T(1))", "T(C) ÷(C × T(1))"),
        _DERIVED,
        "output_tok_s",
    ),
    _d(
        "marginal_tok_s_per_slot",
        ("New tok/s per slot", "每槽新增 tok/s"),
        "tok/s",
        1,
        ("(T(C) − T(previous level)) / (C − previous C)", "(T(C) − T(上一档))÷(C − 上一档 C)"),
        _DERIVED,
        "output_tok_s",
    ),
    _d(
        "ttft_p50_ms",
        ("TTFT p50, ms", "TTFT p50 ms"),
        "ms",
        0,
        (f"median of first token − request sent; {_SAME}", f"首个 token − 请求写完,中位数;{_SAME_ZH}"),
        _REQUESTS,
        "ttft_ms",
    ),
    _d(
        "ttft_p99_ms",
        ("TTFT p99, ms", "TTFT p99 ms"),
        "ms",
        0,
        (f"99th percentile of TTFT over requests; {_SAME}", f"各请求 TTFT 的 p99;{_SAME_ZH}"),
        _REQUESTS,
        "ttft_ms",
    ),
    _d(
        "ttft_mean_ms",
        ("TTFT mean, ms", "TTFT 均值 ms"),
        "ms",
        0,
        ("mean of TTFT over requests", "各请求 TTFT 的均值"),
        _REQUESTS,
        "ttft_ms",
    ),
    _d(
        "tpot_p50_ms",
        ("TPOT p50, ms", "TPOT p50 ms"),
        "ms",
        2,
        (
            "median over requests of (E2EL − TTFT) / (output tokens − 1)",
            "各请求(E2EL − TTFT)÷(输出 token 数 − 1)的中位数",
        ),
        _REQUESTS,
        "tpot_ms",
    ),
    _d(
        "itl_p50_ms",
        ("ITL p50, ms", "ITL p50 ms"),
        "ms",
        2,
        (f"median gap between arrivals with tokens; {_SAME}", f"相邻 token 到达间隔的中位数;{_SAME_ZH}"),
        _CHUNKS,
        "arrival_ns",
    ),
    _d(
        "itl_p90_ms",
        ("ITL p90, ms", "ITL p90 ms"),
        "ms",
        1,
        (f"90th percentile of the gaps; {_SAME}", f"间隔的 p90;{_SAME_ZH}"),
        _CHUNKS,
        "arrival_ns",
    ),
    _d(
        "itl_p99_ms",
        ("ITL p99, ms", "ITL p99 ms"),
        "ms",
        1,
        (f"99th percentile of the gaps; {_SAME}", f"间隔的 p99;{_SAME_ZH}"),
        _CHUNKS,
        "arrival_ns",
    ),
    _d(
        "itl_mean_ms",
        ("ITL mean, ms", "ITL 均值 ms"),
        "ms",
        2,
        ("mean of all gaps of the level", "该档全部间隔的均值"),
        _CHUNKS,
        "arrival_ns",
    ),
    _d(
        "itl_samples",
        ("ITL samples", "ITL 样本数"),
        "",
        0,
        ("gaps between arrivals with tokens", "带 token 到达之间的间隔数"),
        _CHUNKS,
        "arrival_ns",
    ),
    _d(
        "itl_p99_over_p50",
        ("ITL p99/p50, ×", "ITL p99/p50 ×"),
        "×",
        1,
        ("ITL p99 / ITL p50 of the same level", "同一档 ITL p99 ÷ ITL p50"),
        _DERIVED,
        "itl_p99_ms",
        "itl_p50_ms",
    ),
    _d(
        "itl_p99_jump_from_prev",
        ("ITL p99 jump, ×", "ITL p99 跳变 ×"),
        "×",
        1,
        ("ITL p99 / the previous level's ITL p99", "ITL p99 ÷ 上一档 ITL p99"),
        _DERIVED,
        "itl_p99_ms",
    ),
    _d(
        "itl_mean_over_p50",
        ("ITL mean/p50, ×", "ITL 均值/p50 ×"),
        "×",
        2,
        ("ITL mean / ITL p50: the signal of stalls", "ITL 均值 ÷ ITL p50:停顿信号"),
        _DERIVED,
        "itl_mean_ms",
        "itl_p50_ms",
    ),
    _d(
        "e2el_p50_ms",
        ("E2EL p50, ms", "E2EL p50 ms"),
        "ms",
        0,
        ("median of last token − request sent", "末个 token − 请求写完,中位数"),
        _REQUESTS,
        "e2el_ms",
    ),
    _d(
        "e2el_p99_ms",
        ("E2EL p99, ms", "E2EL p99 ms"),
        "ms",
        0,
        ("99th percentile of last token − request sent", "末个 token − 请求写完,p99"),
        _REQUESTS,
        "e2el_ms",
    ),
    _d(
        "decode_p50_s",
        ("Decode p50, s", "decode p50 s"),
        "s",
        2,
        ("E2EL p50 − TTFT p50", "E2EL p50 − TTFT p50"),
        _DERIVED,
        "e2el_p50_ms",
        "ttft_p50_ms",
    ),
    _d(
        "ttft_share_pct",
        ("TTFT share, %", "TTFT 占比 %"),
        "%",
        1,
        ("TTFT p50 / E2EL p50", "TTFT p50 ÷ E2EL p50"),
        _DERIVED,
        "ttft_p50_ms",
        "e2el_p50_ms",
    ),
    _d(
        "little_in_flight",
        ("Little's law", "Little 定律"),
        "",
        2,
        ("T(C) × E2EL / output tokens a request; near C", "T(C) × E2EL ÷ 每请求输出 token;应接近 C"),
        _DERIVED,
        "output_tok_s",
        "e2el_mean_ms",
    ),
    _d(
        "tflop_s",
        ("TFLOP/s", "TFLOP/s"),
        "TFLOP/s",
        2,
        (
            "growth of the FLOP counter / time between the scrapes / 1e12 (estimated by the server)",
            "FLOP 计数器增量 ÷ 两次抓取间隔 ÷ 1e12(服务端推算)",
        ),
        _SCRAPES,
    ),
    _d(
        "read_gb_s",
        ("GB/s", "GB/s"),
        "GB/s",
        1,
        (
            "growth of the counter of bytes read / time / 1e9 (estimated, reads only)",
            "读取字节计数器增量 ÷ 时间 ÷ 1e9(推算,只计读取)",
        ),
        _SCRAPES,
    ),
    _d(
        "mfu_pct",
        ("MFU, %", "MFU %"),
        "%",
        1,
        ("TFLOP/s / peak TFLOP/s", "TFLOP/s ÷ 峰值 TFLOP/s"),
        _DERIVED,
        "tflop_s",
        "peak_tflop_s",
    ),
    _d(
        "mbu_pct",
        ("MBU, %", "MBU %"),
        "%",
        1,
        ("GB/s read / peak GB/s", "读取 GB/s ÷ 峰值 GB/s"),
        _DERIVED,
        "read_gb_s",
        "peak_bandwidth_gb_s",
    ),
    _d(
        "tok_per_iter",
        ("tok/iter", "tok/iter"),
        "tokens",
        1,
        ("growth of the step-token sum / growth of the step count", "每步 token 总和增量 ÷ 步数增量"),
        _SCRAPES,
    ),
    _d(
        "power_w_mean",
        ("Power, W (mean)", "功耗 W 均值"),
        "W",
        0,
        ("mean over the level's window", "该档窗口内均值"),
        _TELEMETRY,
        "power_w",
    ),
    _d(
        "temp_c_mean",
        ("Temperature, °C (mean)", "温度 °C 均值"),
        "°C",
        0,
        ("mean over the level's window", "该档窗口内均值"),
        _TELEMETRY,
        "temperature_c",
    ),
    _d(
        "joule_per_output_token",
        ("J per token", "J/token"),
        "J",
        3,
        ("energy of the window / its output tokens, or mean power / T(C)", "窗口能量 ÷ 输出 token,或平均功率 ÷ T(C)"),
        _DERIVED,
        "energy_j",
        "power_w_mean",
        "output_tok_s",
    ),
    _d(
        "kv_mean_pct",
        ("KV mean, %", "KV 均值 %"),
        "%",
        1,
        ("mean of the KV usage gauge over the window", "窗口内 KV 占用的均值"),
        _SCRAPES,
    ),
    _d(
        "kv_peak_pct",
        ("KV peak, %", "KV 峰值 %"),
        "%",
        1,
        ("highest KV usage seen by a scrape", "抓取到的最高 KV 占用"),
        _SCRAPES,
    ),
    _d(
        "kv_upper_bound_pct",
        ("KV upper bound, %", "KV 上界 %"),
        "%",
        1,
        ("C × (input + output) / pool tokens", "C ×(输入 + 输出)÷ 池 tokens"),
        _DERIVED,
        "C",
        "kv_pool_tokens",
    ),
    _d(
        "kv_reconciled_pct",
        ("running × context / pool, %", "running × 上下文 ÷ 池 %"),
        "%",
        2,
        ("running mean × mean context / pool tokens", "running 均值 × 平均上下文 ÷ 池 tokens"),
        _DERIVED,
        "running_mean",
        "kv_pool_tokens",
    ),
    _d(
        "kv_deviation_pct",
        ("Deviation, %", "偏差 %"),
        "%",
        2,
        ("(reconciled − measured) / measured", "(对账值 − 实测)÷ 实测"),
        _DERIVED,
        "kv_reconciled_pct",
        "kv_mean_pct",
    ),
    _d(
        "running_mean",
        ("Running mean", "running 均值"),
        "",
        1,
        ("mean of the running gauge over the window", "窗口内 running 的均值"),
        _SCRAPES,
    ),
    _d(
        "waiting_peak",
        ("Waiting peak", "waiting 峰值"),
        "",
        0,
        ("highest waiting gauge of the window", "窗口内 waiting 的最大值"),
        _SCRAPES,
    ),
    _d(
        "preemptions",
        ("Preemptions", "抢占"),
        "",
        0,
        ("growth of the preemption counter, read after the level drained", "抢占计数器增量,排空后读取"),
        _SCRAPES,
    ),
    _d(
        "roofline_floor_ms",
        ("Floor, ms", "地板 ms"),
        "ms",
        2,
        (
            "(weight bytes + C × mean context × KV bytes a token) / peak bandwidth",
            "(权重字节 + C × 平均上下文 × 每 token KV 字节)÷ 峰值带宽",
        ),
        _DERIVED,
        "model",
        "peak_bandwidth_gb_s",
    ),
    _d(
        "roofline_attained_pct",
        ("Attained, %", "达成率 %"),
        "%",
        1,
        ("floor / ITL p50", "地板 ÷ ITL p50"),
        _DERIVED,
        "roofline_floor_ms",
        "itl_p50_ms",
    ),
    _d(
        "roofline_attained_at_running_mean_pct",
        ("Attained at running mean, %", "按 running 均值的达成率 %"),
        "%",
        1,
        ("floor with the running mean in place of C / ITL p50", "以 running 均值代替 C 的地板 ÷ ITL p50"),
        _DERIVED,
        "running_mean",
        "itl_p50_ms",
    ),
    _d(
        "predicted_tflop_s",
        ("Predicted TFLOP/s", "预测 TFLOP/s"),
        "TFLOP/s",
        2,
        (
            "T(C) / output tokens × FLOPs of one request by the model's shape",
            "T(C) ÷ 输出 token × 模型结构给出的每请求 FLOPs",
        ),
        _DERIVED,
        "output_tok_s",
        "model",
    ),
    _d(
        "predicted_read_gb_s",
        ("Predicted GB/s", "预测 GB/s"),
        "GB/s",
        1,
        ("steps/s × weight bytes + requests/s × other bytes", "步/秒 × 权重字节 + 请求/秒 × 其余字节"),
        _DERIVED,
        "output_tok_s",
        "tok_per_iter",
        "model",
    ),
    _d(
        "mean_step_ms",
        ("Mean step, ms", "平均步长 ms"),
        "ms",
        2,
        ("tok/iter / (T(C) × (in + out) / out)", "tok/iter ÷(T(C)×(输入 + 输出)÷ 输出)"),
        _DERIVED,
        "tok_per_iter",
        "output_tok_s",
    ),
    _d(
        "stall_share_pct",
        ("Stall share, %", "停顿占比 %"),
        "%",
        1,
        (
            "gaps that hold another request's prefill / all gaps, from the run's own times",
            "含他人 prefill 的间隔 ÷ 全部间隔,由本次时刻判定",
        ),
        _CHUNKS,
    ),
    _d(
        "stall_share_expected_pct",
        ("Expected share, %", "应有占比 %"),
        "%",
        1,
        ("(C − 1) / (output tokens − 1): what a closed loop must have", "(C − 1)÷(输出 token − 1):闭环必然的占比"),
        _DERIVED,
    ),
    _d(
        "in_step_pct",
        ("In step, %", "步调一致 %"),
        "%",
        0,
        (
            "other first tokens in a request's own step / (C − 1), first wave left out: 0 spread out, 100 in lockstep",
            "与自身同一步的他人首 token ÷(C − 1),不计第一波:0 为错开,100 为完全同步",
        ),
        _CHUNKS,
    ),
    _d(
        "stall_ms_p50",
        ("Stall p50, ms", "停顿 p50 ms"),
        "ms",
        1,
        ("median length of a stalled gap", "停顿间隔的中位数"),
        _CHUNKS,
    ),
    _d(
        "burst_share_above_p95_pct",
        ("First wave above p95, %", "p95 以上来自首批 %"),
        "%",
        0,
        ("requests above p95 TTFT that were in the first wave", "TTFT 超过 p95 的请求中首批的占比"),
        _REQUESTS,
    ),
    _d(
        "ttft_p99_without_burst_ms",
        ("TTFT p99 without first wave, ms", "去掉首批的 TTFT p99 ms"),
        "ms",
        0,
        ("TTFT p99 over the later waves", "其后各批的 TTFT p99"),
        _REQUESTS,
    ),
    _d(
        "kv_pool_tokens",
        ("KV pool, tokens", "KV 池 tokens"),
        "tokens",
        0,
        ("as the server's startup log prints it", "服务端启动日志所印"),
        _LOG,
    ),
    _d("boot_id", ("Boot", "启动"), "", 0, ("boot the level was measured on", "该档所在的启动"), "cell.json"),
    _d(
        "queue_mean_ms",
        ("Queue mean, ms", "排队均值 ms"),
        "ms",
        1,
        ("queue time sum / count, server side", "服务端排队时间总和 ÷ 次数"),
        _SCRAPES,
    ),
    _d(
        "prefill_mean_ms",
        ("Prefill mean, ms", "prefill 均值 ms"),
        "ms",
        1,
        ("prefill time sum / count, server side", "服务端 prefill 时间总和 ÷ 次数"),
        _SCRAPES,
    ),
    _d(
        "ttft_rest_mean_ms",
        ("Front end, IPC, ms", "前端与 IPC ms"),
        "ms",
        1,
        ("TTFT mean − queue mean − prefill mean", "TTFT 均值 − 排队均值 − prefill 均值"),
        _DERIVED,
        "ttft_mean_ms",
        "queue_mean_ms",
        "prefill_mean_ms",
    ),
    _d(
        "ttft_p99_s",
        ("TTFT p99, s", "TTFT p99 秒"),
        "s",
        2,
        ("99th percentile of TTFT over requests", "各请求 TTFT 的 p99"),
        _REQUESTS,
        "ttft_ms",
    ),
    _d(
        "steady_start_s",
        ("Steady from, s", "稳态起点 s"),
        "s",
        1,
        ("all C slots busy and the first wave has its first tokens", "C 个槽全忙且首批已得首字"),
        _REQUESTS,
    ),
    _d(
        "steady_duration_s",
        ("Steady for, s", "稳态时长 s"),
        "s",
        1,
        ("until a slot stays empty", "到有槽不再补满为止"),
        _REQUESTS,
    ),
)

DEFINITIONS: dict[str, Definition] = {definition.key: definition for definition in _ALL}


def definition(key: str) -> Definition | None:
    """Return what a column is, None if not known; a steady twin is the same number over the steady state."""
    found = DEFINITIONS.get(key)
    if found is None and key.startswith("steady_") and key[7:] in DEFINITIONS:
        base = DEFINITIONS[key[7:]]
        return Definition(
            key,
            (f"{base.label[0]} (steady)", f"{base.label[1]}(稳态)"),
            base.unit,
            base.decimals,
            (f"{base.formula[0]}; over the steady state only", f"{base.formula[1]};只取稳态"),
            base.source,
            base.inputs,
        )
    return found


def shown(key: str, value: float) -> str:
    """Write a number as the report shows it everywhere: one formatter a metric, thousands separated.

    ITL has two decimals under 100 ms and one from there, as the sentences have.
    """
    found = definition(key)
    decimals = found.decimals if found is not None else (0 if float(value).is_integer() else 2)
    if found is not None and found.key.removeprefix("steady_").startswith("itl_p") and found.unit == "ms":
        decimals = 2 if abs(value) < 99.995 else 1
    text = f"{value:,.{decimals}f}"
    return text[1:] if text.startswith("-") and not any(digit in text for digit in "123456789") else text
