"""The words of the figures, in each language. Numbers come in as arguments; thresholds are never written here."""

from dataclasses import dataclass

LANGUAGES = ("en", "zh")

WORDS: dict[str, tuple[str, str]] = {
    "axis.concurrency": ("Concurrency C (requests in flight)", "并发 C(在飞请求数)"),
    "axis.throughput": ("Output throughput, tok/s", "输出吞吐,tok/s"),
    "axis.ttft": ("TTFT, ms (log)", "首字延迟 TTFT,毫秒(对数)"),
    "axis.itl": ("Gap between tokens (ITL), ms (log)", "token 间隔 ITL,毫秒(对数)"),
    "axis.marginal": ("New tok/s per added slot", "每新增一个槽的 tok/s"),
    "axis.segment": ("Concurrency, from → to", "并发区间(从 → 到)"),
    "axis.percent_peak": ("Share of the peak, %", "占峰值的百分比,%"),
    "axis.seconds": ("Seconds", "秒"),
    "axis.kv": ("Share of the KV pool, %", "占 KV 池的百分比,%"),
    "axis.share_of_gaps": ("Share of gaps per bin, %", "每档间隔占比,%"),
    "axis.position": ("Position in the launch wave (1 = released first)", "首批投放中的次序(1 = 最先发出)"),
    "axis.time": ("Time since the load began, s", "自加压开始的时间,秒"),
    "axis.requests": ("Requests", "请求数"),
    "axis.power": ("Power, W", "功耗,W"),
    "axis.slot": ("Client slot", "客户端槽位"),
    "axis.ttft_s": ("TTFT, s", "首字延迟 TTFT,秒"),
    "note.requests": ("Requests a level, in order of C: {counts}.", "各档请求数,按 C 排列:{counts}。"),
    "note.requests_unknown": (
        "Number of requests a level: not in the table.",
        "各档请求数:表中没有。",
    ),
    "note.itl": ("ITL samples a level, in order of C: {counts}.", "各档 ITL 样本数,按 C 排列:{counts}。"),
    "note.itl_unknown": ("Number of ITL samples a level: not in the table.", "各档 ITL 样本数:表中没有。"),
    "note.hollow": ("Hollow = not to be trusted. {reasons}.", "空心 = 不可信。{reasons}。"),
    "note.unlike": ("each for a reason of its own", "原因各不相同"),
    "note.hatched": ("Hatched = not to be trusted. {reasons}.", "斜线 = 不可信。{reasons}。"),
    "note.interval": (
        "Vertical bars: bootstrap interval, requests resampled in blocks.",
        "竖线:请求分块重采样的 bootstrap 区间。",
    ),
    "note.dotted": ("Dotted: levels in between are missing.", "点线:中间的档缺数据。"),
    "note.failed_levels": ("No value at C = {levels}.", "C = {levels} 没有数值。"),
    "reason.audit": ("audit {id} failed", "审计 {id} 未通过"),
    "reason.none_ok": ("no request succeeded", "没有一个请求成功"),
    "missing": (
        "Not drawn: the levels table lacks {what}.",
        "无法绘制:档位表里缺 {what}。",
    ),
    "missing.levels": ("Not drawn: the table has no level.", "无法绘制:表里没有任何档。"),
    "missing.extra": (
        "Not drawn: it needs {what}, which a table of levels does not hold. Build the report from a measured round.",
        "无法绘制:需要 {what},档位表里没有。请从实测的一轮生成报告。",
    ),
    "what.histogram": ("the histogram of token gaps", "token 间隔直方图"),
    "what.launch": ("the TTFT of each request of the launch wave", "首批请求各自的 TTFT"),
    "what.timeline": ("the scrapes and telemetry over time", "随时间的抓取与遥测数据"),
    "what.requests": ("the times of each request", "每个请求的时刻"),
    "tradeoff.title": ("Throughput against latency", "吞吐 – 延迟权衡曲线"),
    "tradeoff.p99": ("TTFT p99", "TTFT p99"),
    "tradeoff.p50": ("TTFT p50", "TTFT p50"),
    "tradeoff.tier": ("SLO {tier} s", "SLO {tier} 秒"),
    "tradeoff.operating": ("C={C}: highest level within {tier} s", "C={C}:p99 在 {tier} 秒内的最高档"),
    "tradeoff.operating_plain": ("C={C}: operating point", "C={C}:推荐运行点"),
    "scaling.title": ("Scaling: measured and ideal", "扩展效率:实测 vs 理想线性"),
    "scaling.measured": ("measured", "实测"),
    "scaling.ideal": ("ideal: T({first}) × C / {first}", "理想线性:T({first}) × C / {first}"),
    "scaling.ideal_one": ("ideal: T(1) × C", "理想线性:T(1) × C"),
    "scaling.base": (
        "Efficiencies are not written, and the ideal line is not to be trusted: both rest on C={first}.",
        "未标效率,理想线也不可信:两者都以 C={first} 为基准。",
    ),
    "marginal.title": ("Throughput bought by one more slot", "边际吞吐收益(每新增一个并发槽)"),
    "marginal.base": ("T({first}) per slot = {value} tok/s", "T({first}) 每槽 = {value} tok/s"),
    "utilization.title": ("Memory bandwidth (MBU) and compute (MFU) in use", "MBU(带宽利用率)与 MFU(算力利用率)"),
    "utilization.mbu": ("MBU: bytes read / peak", "MBU:读取字节 / 峰值"),
    "utilization.mfu": ("MFU: FLOPs / peak", "MFU:FLOPs / 峰值"),
    "utilization.crossing": ("cross at C ≈ {C}, {pct}%", "交于 C ≈ {C}({pct}%)"),
    "utilization.no_crossing": ("The two do not cross inside the sweep.", "两条线在本次扫描内没有相交。"),
    "utilization.peaks": (
        "Peaks: {bandwidth} GB/s, {flops} TFLOP/s{label}.",
        "峰值:{bandwidth} GB/s,{flops} TFLOP/s{label}。",
    ),
    "utilization.estimated": (
        "Counters are estimates from the model's shape, reads only; no hardware counter is read.",
        "计数器由模型结构推算,只计读取;不是硬件计数器。",
    ),
    "itl_split.title": ("The gap between tokens: median and tail", "ITL 分位数分裂(对数纵轴)"),
    "itl_split.p99": ("ITL p99", "ITL p99"),
    "itl_split.p90": ("ITL p90", "ITL p90"),
    "itl_split.mean": ("ITL mean", "ITL 均值"),
    "itl_split.p50": ("ITL p50", "ITL p50"),
    "itl_split.shade": ("from p50 to p99", "p50 到 p99 的跨度"),
    "itl_split.jump": ("×{jump} on C={before}", "×{jump}(比 C={before})"),
    "itl_split.note": (
        "Above a point: that level's p99 / p50. Slanted line: p99 over the level before.",
        "点上方:同一档的 p99 / p50。斜虚线:p99 相对上一档的倍数。两种倍数不要混用。",
    ),
    "e2el.title": ("What end-to-end latency is made of (p50)", "E2EL 构成:TTFT vs decode 耗时(p50)"),
    "e2el.ttft": ("TTFT p50", "TTFT p50"),
    "e2el.decode": ("decode = E2EL p50 − TTFT p50", "decode = E2EL p50 − TTFT p50"),
    "e2el.whole": ("E2EL p50, split not known", "E2EL p50(构成未知)"),
    "e2el.share": ("Number at the bar: E2EL p50 and TTFT's share of it.", "条旁数字:E2EL p50,以及 TTFT 占其中的比例。"),
    "kv_pool.title": ("How far each level is from the KV wall", "各并发点的 KV 池占用"),
    "kv_pool.bound": ("upper bound: C × (in + out) / pool", "上界:C ×(输入 + 输出)/ 池"),
    "kv_pool.mean": ("measured mean", "实测均值"),
    "kv_pool.peak": ("observed peak", "观测峰值"),
    "kv_pool.off": ("not measured", "未测量"),
    "kv_pool.wall": ("pool full", "池满"),
    "kv_pool.pool": (
        "Pool: {pool} tokens; one request holds at most {request}.",
        "KV 池:{pool} tokens;每请求最多占 {request}。",
    ),
    "kv_pool.unknown_pool": ("Pool size or request length unknown: no upper bound.", "KV 池或请求长度未知:没有上界。"),
    "itl_distribution.title": ("All token gaps, by level", "各档的全部 token 间隔"),
    "itl_distribution.gap": ("Gap between tokens (ITL), ms (log)", "token 间隔 ITL,毫秒(对数)"),
    "itl_distribution.note": (
        "Each ridge: the level's gaps, log count, scaled to its highest bin: rare stalls stay visible. Bars: p50, p99.",
        "每条山脊:该档间隔的分布,按各自最高档的对数计数缩放,少见的停顿也看得见。竖线:p50、p99。",
    ),
    "ttft_by_launch.title": ("TTFT by position in the launch wave", "首批请求的 TTFT 与次序"),
    "ttft_by_launch.rest": ("median of later requests", "其后请求的中位数"),
    "timeline.title": ("One level over time, C = {C}", "C = {C} 随时间的变化"),
    "timeline.running": ("running", "running(在跑)"),
    "timeline.waiting": ("waiting", "waiting(排队)"),
    "timeline.kv": ("KV pool in use, %", "KV 池占用,%"),
    "timeline.power": ("power, W", "功耗,W"),
    "timeline.steady": ("steady state", "稳态"),
    "timeline.steady_note": ("Grey: steady state.", "灰色:稳态。"),
    "request_timeline.title": ("Requests at C = {C}: prefill, decode, stalls", "C = {C} 的请求:prefill、decode、停顿"),
    "request_timeline.prefill": ("until first token", "到首字"),
    "request_timeline.decode": ("decode", "decode"),
    "request_timeline.stall": ("stall", "停顿"),
    "request_timeline.failed": ("failed", "失败"),
    "request_timeline.note": (
        "One row a client slot; {shown} of {slots} slots, the first {seconds} s.",
        "每行一个客户端槽位;共 {slots} 个,画出 {shown} 个,前 {seconds} 秒。",
    ),
    "overlay.tradeoff.title": ("Throughput against latency, compared", "吞吐 – 延迟权衡曲线:对比"),
    "overlay.scaling.title": ("Scaling, compared", "扩展效率:对比"),
    "overlay.itl_split.title": ("Token gaps, compared", "ITL 分位数分裂:对比"),
    "overlay.kv_pool.title": ("KV pool in use, compared", "KV 池占用:对比"),
    "overlay.p99_p50": ("{name}: p99 (solid), p50 (dashed)", "{name}:p99(实线)、p50(虚线)"),
    "overlay.bound_mean": ("{name}: bar = upper bound, diamond = mean", "{name}:条 = 上界,菱形 = 均值"),
    "overlay.pools": ("Pools, tokens: {pools}.", "KV 池,tokens:{pools}。"),
    "overlay.ideal": ("dashed: each one's own ideal line", "虚线:各自的理想线性"),
}

_REASONS = {"no request succeeded": "reason.none_ok"}


@dataclass(frozen=True)
class Words:
    """Look words up in one language and fill in their numbers."""

    language: str = "en"

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}; found {self.language!r}")

    def __call__(self, key: str, **numbers: object) -> str:
        """Return the text of ``key`` with its placeholders filled."""
        text = WORDS[key][LANGUAGES.index(self.language)]
        return text.format(**numbers) if numbers else text

    def reason(self, reason: str) -> str:
        """Translate the reasons this package gives; others (a server's, an audit's) are shown as they are."""
        if reason.startswith("audit "):
            return self("reason.audit", id=reason.removeprefix("audit "))
        return self(_REASONS[reason]) if reason in _REASONS else reason
