# ruff: noqa: E501 - a table of texts
"""The words of the page, in each language. Numbers and thresholds come in as arguments."""

from dataclasses import dataclass

LANGUAGES = ("en", "zh")

WORDS: dict[str, tuple[str, str]] = {
    "title": ("Concurrency sweep", "并发扫描报告"),
    "lead.workload": (
        "{input} tokens in, {output} tokens out, concurrency {levels}.",
        "固定 {input} 输入 / {output} 输出,并发 {levels}。",
    ),
    "lead.levels": ("Concurrency {levels}; lengths of the requests are not given.", "并发 {levels};未给出请求长度。"),
    "lead.question": (
        "Two questions: from where on is throughput paid for with latency, and how close is the server to its limits?",
        "两个问题:吞吐涨到多少时开始用延迟去换;服务离各项上限还有多远。",
    ),
    "nav": ("Contents", "目录"),
    "verdict": ("Verdict", "结论"),
    "outcome.holds": ("holds", "成立"),
    "outcome.fails": ("does not hold", "不成立"),
    "outcome.not_evaluable": ("cannot be evaluated", "无法判定"),
    "outcome.not_trusted": ("not trusted", "不可信"),
    "outcome.audit.not_trusted": ("not trusted", "不可信"),
    "outcome.audit.holds": ("passed", "通过"),
    "outcome.audit.fails": ("failed", "未通过"),
    "outcome.audit.not_evaluable": ("cannot be evaluated", "无法判定"),
    "not_known": ("not known", "未知"),
    "cannot": ("cannot be evaluated: missing {what}", "无法判定:缺 {what}"),
    "card.operating": ("Recommended operating point", "推荐运行点"),
    "card.operating.none": ("No level keeps TTFT p99 within {tier} s", "没有一档的 p99 TTFT 在 {tier} 秒以内"),
    "card.operating.gain": ("{gain}× the throughput of a single stream", "吞吐是单流的 {gain} 倍"),
    "card.operating.itl": ("ITL p50 {itl} ms ({growth} against a single stream)", "p50 ITL {itl} ms(比单流 {growth})"),
    "card.operating.itl_plain": ("ITL p50 {itl} ms", "p50 ITL {itl} ms"),
    "card.operating.ttft": (
        "TTFT p99 {ttft} s, within the {tier} s promised",
        "p99 TTFT {ttft} 秒,在 {tier} 秒 SLO 以内",
    ),
    "card.operating.next": (
        "The next level, C={C}: {gain} tok/s for a TTFT p99 of {ttft} s.",
        "下一档 C={C}:吞吐 {gain},代价是 p99 TTFT 到 {ttft} 秒。",
    ),
    "card.operating.fallback": (
        "To be rid of the spikes in ITL (p99 {itl} ms here), fall back to C={C}: {loss} of the throughput is lost.",
        "要消掉 ITL 尖峰(此处 p99 为 {itl} ms),只能退回 C={C},丢掉 {loss} 的吞吐。",
    ),
    "card.mbu": ("Memory bandwidth in use (MBU), C={C}", "带宽利用率 MBU,C={C}"),
    "card.mbu.line": (
        "{tok} tok/s; estimated from the model's shape, reads only",
        "{tok} tok/s;由模型结构推算,只计读取",
    ),
    "card.gain": ("Gain in throughput at C={C}", "C={C} 吞吐增益"),
    "card.gain.line": (
        "for {times} times the concurrency; the last segment buys {marginal} tok/s a slot",
        "并发是 {times} 倍,最后一段每槽只得 {marginal} tok/s",
    ),
    "card.ratio": ("Largest ITL p99 / p50", "ITL p99 / p50 最大比"),
    "card.ratio.even": ("at C={C}; no level jitters", "出现在 C={C};没有一档出现抖动"),
    "card.operating.barred": ("not claimed: barred by {audits}", "不下结论:被 {audits} 禁止"),
    "card.ratio.at": ("at C={C}", "出现在 C={C}"),
    "card.operating.doubted": ("not given: it would rest on {at}", "不给建议:它要依赖 {at}"),
    "card.doubt": ("† Not to be trusted. {why}.", "† 不可信。{why}。"),
    "card.ratio.line": ("at C={C}; the mean does not show it", "出现在 C={C},均值看不见这个裂口"),
    "card.kv": ("KV pool in use at C={C}", "C={C} 时 KV 池占用"),
    "card.kv.line": ("measured mean; upper bound {bound}", "采样窗口实测均值,理论上界 {bound}"),
    "card.kv.bound_line": ("upper bound; the mean was not read", "理论上界;没有实测均值"),
    "section.tradeoff": ("What does each further token per second cost?", "每多一份吞吐,要付多少延迟?"),
    "section.scaling": ("Where does throughput leave linear scaling?", "吞吐从哪里开始偏离线性?"),
    "section.marginal": ("What does one more slot buy?", "再加一个槽能换来什么?"),
    "section.utilization": ("Which wall is the device at?", "瓶颈是哪堵墙?"),
    "section.itl": ("Where does jitter begin, and why?", "抖动从哪里开始,原因是什么?"),
    "section.queue": ("Queueing, and the burst at the start", "排队与起步的突发"),
    "section.e2el": ("What is end-to-end latency made of?", "端到端时延由什么构成?"),
    "section.kv": ("How many requests fit at once?", "同时放得下多少条请求?"),
    "section.comparison": ("Did the answer move?", "结论变了吗?"),
    "section.levels": ("All levels", "完整数据"),
    "section.audits": ("Audits", "审计"),
    "section.slo": ("Given a promise, how many requests may run?", "给定承诺,最多能开多少并发?"),
    "section.recommendations": ("Recommendations", "建议"),
    "section.client": ("Was the client the limit?", "客户端是不是瓶颈?"),
    "section.machine": ("Machine", "机器"),
    "section.server": ("Server, KV pool and startup log", "服务端、KV 池与启动日志"),
    "section.provenance": ("Where the numbers come from", "数据来源"),
    "section.definitions": ("Definitions", "定义"),
    "section.other": ("Other findings", "其他结论"),
    "table.predicted": ("Counters against the model's shape", "计数器与模型结构推算的对照"),
    "table.stall_crossings": (
        "Where a percentile has to become a stall, knee or not",
        "百分位在哪里必然落到停顿上(与拐点无关)",
    ),
    "table.stalls": ("Stalls: gaps that hold another request's prefill", "停顿:含他人 prefill 的间隔"),
    "table.burst": ("The launch burst in the tail of TTFT", "TTFT 尾部里的起步突发"),
    "table.queue": ("Queue and where TTFT goes, server side", "服务端的排队与 TTFT 构成"),
    "table.rules": ("Knees: one rule each", "拐点:一条规则一个名字"),
    "table.definitions": ("Every number of this report", "本报告的每个数字"),
    "table.fidelity": ("Client fidelity, per level", "客户端保真度,按档"),
    "table.boots": ("Boots of the server", "服务端的启动"),
    "table.files": ("Files this report was built from", "生成本报告所用的文件"),
    "table.versions": ("Versions", "版本"),
    "table.server_arguments": ("Server arguments", "服务端参数"),
    "table.client_arguments": ("Client arguments", "客户端参数"),
    "table.machine": ("Machine", "机器"),
    "table.pool": ("KV pool", "KV 池"),
    "column.remarks": ("Remarks", "备注"),
    "column.item": ("Item", "项目"),
    "column.rule": ("Rule", "规则"),
    "column.threshold": ("Threshold", "阈值"),
    "column.steady": ("Steady state", "稳态"),
    "column.agreement": ("Bootstrap draws that agree", "bootstrap 一致率"),
    "column.percentile": ("Percentile", "百分位"),
    "column.share_pct": ("Stall share it takes", "所需停顿占比"),
    "column.expected_C": ("C expected of a closed loop", "闭环应有的 C"),
    "column.measured_C": ("C measured", "实测 C"),
    "column.result": ("Result", "结果"),
    "column.metric": ("Metric", "指标"),
    "column.formula": ("Formula", "公式"),
    "column.inputs": ("Inputs", "输入"),
    "column.file": ("File", "文件"),
    "column.unit": ("Unit", "单位"),
    "column.sha256": ("SHA-256", "SHA-256"),
    "column.bytes": ("Bytes", "字节"),
    "column.value": ("Value", "值"),
    "column.lines": ("Lines of the log", "日志行"),
    "rule.jitter_onset": (
        "Jitter onset: smallest C with ITL p99/p50 ≥ threshold",
        "抖动起点:ITL p99/p50 ≥ 阈值的最小 C",
    ),
    "rule.jitter_onset_by_jump": (
        "The same by jump: ITL p99 over the previous level's ≥ threshold",
        "同上,按跳变:ITL p99 ÷ 上一档 ≥ 阈值",
    ),
    "rule.quiet_fallback": ("Quiet fallback: largest C below the onset", "安静退路:起点以下的最大 C"),
    "rule.scaling_departs": (
        "Scaling departs: smallest C with efficiency < threshold, %",
        "偏离线性:效率 < 阈值(%)的最小 C",
    ),
    "rule.marginal_falls": (
        "Marginal falls: left end of the first segment under threshold × T(1)",
        "边际下降:首个低于阈值 × T(1) 的区间左端",
    ),
    "rule.saturated": ("Saturated: T(last) / T(previous) < threshold", "饱和:T(末档)÷ T(前一档)< 阈值"),
    "rule.operating_point": (
        "Operating point: largest C with TTFT p99 ≤ threshold, s, all lower levels passing too",
        "运行点:p99 TTFT ≤ 阈值(秒)且更低各档都满足的最大 C",
    ),
    "rule.yes": ("yes", "是"),
    "rule.no": ("no", "否"),
    "rule.none": ("none in this sweep", "本次扫描内没有"),
    "roofline.formula": ("floor = (weights + C × KV of one request) / bandwidth", "地板 = (权重 + C × 单条 KV) / 带宽"),
    "roofline.weights": (
        "weights (matrix products) = {params} × {bytes} B = {gb} GB   (the embedding is a lookup)",
        "权重(参与矩阵乘) = {params} × {bytes} B = {gb} GB   (embedding 是查表)",
    ),
    "roofline.kv": (
        "KV of one request = {context} tok × {kib} KiB = {gb} GB   (mean context over the run)",
        "单条 KV = {context} tok × {kib} KiB = {gb} GB   (全程平均上下文)",
    ),
    "cap.line": (
        "{pool} tokens ÷ {request} tokens a request = {cap} requests at once (nominal: {nominal})",
        "{pool} tokens ÷ 每请求 {request} tokens = 同时 {cap} 条(名义上限 {nominal})",
    ),
    "cap.hybrid": (
        "{cap} requests of {length} tokens at once, as the server prints it. This is a hybrid model, whose layers do "
        "not all keep every token: its {pool} tokens ÷ {length} would be {wrong}, which is not its capacity, and how "
        "many shorter requests fit cannot be had from it.",
        "按服务端打印，可同时容纳 {cap} 条 {length} tokens 的请求。这是混合模型，并非每一层都保存每个 token："
        "{pool} tokens ÷ {length} 得 {wrong}，不是容量；更短的请求能容纳多少条无法由此算出。",
    ),
    "cap.hybrid_open": (
        "This is a hybrid model, whose layers do not all keep every token: how many requests its pool holds cannot be "
        "had from {pool} tokens.",
        "这是混合模型，并非每一层都保存每个 token：其池能容纳多少条请求，无法由 {pool} tokens 算出。",
    ),
    "log.which_server": (
        "The log holds {count} servers and does not say which was measured, so none was read: {names}. Name the "
        "measured server's model (server.model in the round's file), or give that server's own log (server.log).",
        "日志里有 {count} 个服务端，看不出测的是哪一个，所以一个也没有读取：{names}。请在本轮文件里写明所测服务端的模型"
        "（server.model），或给出它自己的日志（server.log）。",
    ),
    "log.others_failed": (
        "The log holds {count} servers: {names}. The only one that did not fail was read.",
        "日志里有 {count} 个服务端：{names}。读取的是唯一没有失败的那一个。",
    ),
    "log.replicas": (
        "The log holds {count} servers, replicas of one: {names}. Their tokens are added up.",
        "日志里有 {count} 个服务端，是同一服务的副本：{names}。token 数相加。",
    ),
    "log.not_the_servers": (
        "Line {line} of the log speaks of the KV pool, but is not the server's own, and was not read.",
        "日志第 {line} 行提到 KV 池，但不是服务端自己的行，没有读取。",
    ),
    "log.boots_of_several_models": (
        "The log holds boots of several models, one after the other; the last was read. If another was measured, give "
        "the log of that boot alone.",
        "日志里先后有几个模型的启动，读取的是最后一个。若所测的是另一个，请只给出那次启动的日志。",
    ),
    "log.unread": (
        "The startup log is empty, or of no server that is read here (vLLM, llama.cpp), so memory and KV pool are not "
        "known from it. Give the measured server's own log (server.log in the round's file).",
        "启动日志为空，或不属于这里能读取的服务端（vLLM、llama.cpp），因此无从得知显存与 KV 池。请给出所测服务端自己的日志"
        "（本轮文件里的 server.log）。",
    ),
    "mixed_boots": (
        "This sweep mixes {count} boots of the server; KV pools: {pools} tokens. Levels of different boots are comparable only as far as their pools agree.",
        "本次扫描混有 {count} 次启动;KV 池:{pools} tokens。不同启动的档位,只在池大小一致的范围内可比。",
    ),
    "failed_levels": ("No request succeeded at C = {levels}.", "C = {levels} 没有一个请求成功。"),
    "attached.unchecked": (
        "The server's certificate was not checked at C = {levels} (server.tls_verify: false): nothing shows that it was the server that was meant.",
        "C = {levels}:未校验服务端证书(server.tls_verify: false),无法确认所测的就是目标服务端。",
    ),
    "attached.text": (
        "The server takes no token ids, so prompts were text of {asked} words at C = {levels}; the server counted {min} to {max} tokens in a prompt.",
        "服务端不接受 token id,因此 C = {levels} 的提示词为 {asked} 个单词的文本;服务端统计每条提示词 {min} 至 {max} tokens。",
    ),
    "attached.text_exact": (
        "The server takes no token ids, so prompts were text of {asked} words at C = {levels}; the server counted {min} tokens in each prompt.",
        "服务端不接受 token id,因此 C = {levels} 的提示词为 {asked} 个单词的文本;服务端统计每条提示词均为 {min} tokens。",
    ),
    "attached.text_unknown": (
        "The server takes no token ids, so prompts were text of {asked} words at C = {levels}; how many tokens they had is not known, since the server sends no usage.",
        "服务端不接受 token id,因此 C = {levels} 的提示词为 {asked} 个单词的文本;服务端未返回 usage,实际 token 数未知。",
    ),
    "attached.counters": (
        "The server's counters are not known at C = {levels}: {why}. What rests on them cannot be evaluated.",
        "C = {levels}:服务端计数器未知:{why}。依赖计数器的结论无法判定。",
    ),
    "attached.counters.away": (
        "its /metrics redirects to another host ({to}), which is not followed",
        "其 /metrics 重定向到另一主机({to}),不予跟随",
    ),
    "attached.counters.loop": ("its /metrics redirects without end", "其 /metrics 无休止地重定向"),
    "attached.counters.size": (
        "its /metrics is larger than what is read of a page",
        "其 /metrics 页面超过读取上限",
    ),
    "attached.counters.timeout": ("its /metrics did not answer in time", "其 /metrics 未在时限内应答"),
    "attached.counters.closed": (
        "the connection broke off while its /metrics was read",
        "读取其 /metrics 时连接中断",
    ),
    "attached.counters.refused": ("nobody took the connection to its /metrics", "无法连接其 /metrics"),
    "attached.counters.tls": (
        "the encrypted connection to its /metrics failed",
        "与其 /metrics 的加密连接失败",
    ),
    "attached.counters.protocol": ("what its /metrics sent is not HTTP", "其 /metrics 返回的不是 HTTP"),
    "attached.counters.status": ("its /metrics answered with status {status}", "其 /metrics 返回状态码 {status}"),
    "attached.counters.content": (
        "its /metrics is a page for people (HTML), not counters",
        "其 /metrics 是网页(HTML),不是计数器",
    ),
    "unseen.one_arrival": (
        "At C = {levels}, {count} answers came in one arrival: something between server and client buffers them, such as "
        "a proxy, or the server itself sends them so. Their time to first token is their whole latency, and no speed per "
        "token is given.",
        "C = {levels}:{count} 个回答一次性到达:服务端与客户端之间有缓冲(例如代理),或服务端本身就一次发完。其首 token 时间等于整个延迟,不给出逐 token 速度。",
    ),
    "unseen.bursts": (
        "At C = {levels}, {count} answers came in bursts of many tokens at once: something between server and client "
        "buffers them, such as a proxy, or the server itself sends them so; the two cannot be told apart. No speed per "
        "token is given.",
        "C = {levels}:{count} 个回答成批到达:服务端与客户端之间有缓冲(例如代理),或服务端本身就成批发送,二者无法区分。不给出逐 token 速度。",
    ),
    "unseen.packed": (
        "At C = {levels}, {count} answers hold more than eight tokens an arrival on average: the server packs them into "
        "few frames, or something between does. No speed per token is given.",
        "C = {levels}:{count} 个回答平均每次到达超过八个 token:服务端或中间环节把它们合并成少数几帧。不给出逐 token 速度。",
    ),
    "unseen.late_reader": (
        "At C = {levels}, {count} answers seem to have come at once because the client read too late. No speed per token "
        "is given.",
        "C = {levels}:{count} 个回答因客户端读取过晚而看似一次性到达。不给出逐 token 速度。",
    ),
    "unseen.summarised_reasoning": (
        "At C = {levels}, {count} answers hold far more reasoning tokens than the reasoning text that was sent, as a "
        "summary does. No speed per token is given.",
        "C = {levels}:{count} 个回答计入的推理 token 远多于已发送的推理文本(例如只发送摘要)。不给出逐 token 速度。",
    ),
    "usage.zeros": (
        "At C = {levels}, the server's usage says 0 output tokens in {count} answers although text came. Frames were "
        "counted instead, so throughput and the speed per token rest on one token a frame.",
        "C = {levels}:服务端的 usage 在 {count} 个回答里给出 0 个输出 token,而文本确实到达。改为按帧计数,吞吐与逐 token 速度都基于每帧一个 token。",
    ),
    "usage.missing": (
        "At C = {levels}, {count} answers came without the server's usage. Their tokens were counted from what the frames hold.",
        "C = {levels}:{count} 个回答没有服务端的 usage,token 数按帧计得。",
    ),
    "unseen.hidden_reasoning": (
        "At C = {levels}, {count} answers hold reasoning tokens that the server counts and does not send. Time to "
        "first token and the speed per token are those of the tokens that were sent.",
        "C = {levels}:{count} 个回答含有计入用量但未发送的推理 token。首 token 时间与逐 token 速度只针对已发送的 token。",
    ),
    "unseen.several_choices": (
        "At C = {levels}, {count} answers hold several choices in one stream. No speed per token is given.",
        "C = {levels}:{count} 个回答在一条流里含多个候选。不给出逐 token 速度。",
    ),
    "missing.section": ("Not given, so not shown: {what}.", "未提供,故不显示:{what}。"),
    "missing.startup": ("the startup log", "启动日志"),
    "missing.fidelity": ("the client's fidelity block", "客户端保真度数据"),
    "missing.machine": ("the machine's description", "机器描述"),
    "missing.provenance": ("the provenance", "来源信息"),
    "rule_and_numbers": ("rule and numbers", "规则与数字"),
    "trace": (
        "{label}, C={C}: {formula}. From {source}{inputs}. Unrounded: {value}.",
        "{label},C={C}:{formula}。来自 {source}{inputs}。未舍入:{value}。",
    ),
    "trace.inputs": (", columns {inputs}", ",列 {inputs}"),
    "trace.how": (
        "Numbers are links: hover or follow one for its formula, inputs and file.",
        "数字都是链接:悬停或点开即见公式、输入与文件。",
    ),
    "figure": ("Figure {number}", "图 {number}"),
    "revision": ("Revision", "版本号"),
    "revision.dirty": ("with uncommitted changes", "含未提交的改动"),
    "definitions.timeline": (
        "t=0 the client has sent the request\n"
        "│ [1] queue        waits for the scheduler\n"
        "│ [2] prefill      all {input} input tokens, into the KV cache\n"
        "│ [3] front end    tokenizing, HTTP, API server ↔ engine\n"
        "━━ [1]+[2]+[3] = TTFT ━━━━━━━━━━━━━━━━━━━━\n"
        "│ first output token arrives\n"
        "│ [4] ITL × {gaps}    gaps between neighbouring tokens; their mean = TPOT\n"
        "━━ [1]+[2]+[3]+[4] = E2EL ━━━━━━━━━━━━━━━━\n"
        "# per request: E2EL = TTFT + {gaps} × TPOT. Not for medians.\n"
        "# throughput = all output tokens / wall clock. Not 1/TPOT.",
        "t=0 客户端发出请求\n"
        "│ [1] 排队      在 waiting 队列里等调度器放行\n"
        "│ [2] prefill   把 {input} 个输入 token 一次算完,写进 KV Cache\n"
        "│ [3] 前端      分词、HTTP、API server 与引擎之间的通信\n"
        "━━ [1]+[2]+[3] = TTFT 首字延迟 ━━━━━━━━━━━━\n"
        "│ 第 1 个输出 token 送达\n"
        "│ [4] ITL × {gaps}  相邻两个输出 token 的间隔,均值 = TPOT\n"
        "━━ [1]+[2]+[3]+[4] = E2EL 端到端时延 ━━━━━━\n"
        "# 对每条请求:E2EL = TTFT + {gaps} × TPOT;对中位数不成立\n"
        "# 吞吐 = 全部输出 token ÷ 墙钟时间,不是 1/TPOT",
    ),
    "confusions.title": ("Three things easily confused", "三个最容易混的地方"),
    "confusions.1": (
        "TPOT and ITL mean: with equal output lengths the mean of all gaps equals the mean TPOT. What shows stalls is ITL mean (or TPOT) against ITL p50.",
        "TPOT 与 ITL 均值:输出等长时,全部间隔的均值等于 TPOT 的均值。能看出停顿的是 ITL 均值(或 TPOT)与 ITL p50 之差。",
    ),
    "confusions.2": (
        "p50 does not show jitter: a few long gaps leave the median where it is. Look at p99; for events rarer still, at the server's counters.",
        "p50 不能说明抖动:少数长间隔不会移动中位数。要看 p99;更稀有的事件要看计数器。",
    ),
    "confusions.3": (
        "Throughput is not 1/TPOT: TPOT is the pace of one request, throughput the output of the whole server.",
        "吞吐不是 1/TPOT:TPOT 是单条请求的出字速度,吞吐是整台机器的产能。",
    ),
    "caption.overlay_first": (
        "One colour a sweep, its first pass; the table of differences holds means over the passes.",
        "每个 sweep 一种颜色，画的是第一遍；差异表中的数值是各遍的均值。",
    ),
    "caption.overlay": ("One colour a sweep.", "每个 sweep 一种颜色。"),
    "footer": (
        "Built from {levels}. Every figure and table can be rebuilt from it; nothing on this page is fetched from a network.",
        "由 {levels} 生成。全部图表都可由它重建;本页不从网络获取任何内容。",
    ),
    "table.alone": ("Was the measurement alone?", "测量时机器是否独占?"),
    "remark.failed": ("no request succeeded", "没有一个请求成功"),
    "remark.some_failed": ("{count} requests failed", "{count} 个请求失败"),
    "remark.boot": ("boot {boot}", "启动 {boot}"),
    "remark.not_a_share": (
        "the server's page gives {value} % of the KV pool as in use, which cannot be: KV usage is not used",
        "服务端页面给出的 KV 占用为 {value} %,不可能:KV 占用不予采用",
    ),
    "remark.not_a_share_elsewhere": (
        "KV usage is not used, since the same page gives more than the whole pool at another level",
        "同一页面在另一档给出的 KV 占用超出整个池,故本档也不予采用",
    ),
    "remark.blocks": (
        "prefix-cache hits are counted in blocks, and nothing says how many tokens a block has",
        "前缀缓存命中按块计数,而块含多少 token 无从得知",
    ),
    "remark.unit": (
        "prefix-cache hits are counted in blocks or in tokens, and the page does not say which",
        "前缀缓存命中以块还是以 token 计数,页面没有说明",
    ),
    "remark.restarted": (
        "the server's counters fell while the level ran, so nothing they count is given",
        "该档运行期间服务端计数器回退,其计数一概不给",
    ),
    "remark.by_turns": (
        "the server's counters rise and fall from page to page, as where several servers answer by turns, so nothing "
        "they count is given",
        "服务端计数器在各次抓取之间忽高忽低,像是多个服务端轮流应答,其计数一概不给",
    ),
    "remark.workers_changed": (
        "engines or workers of the server came or went while the level ran, so nothing they count is given",
        "该档运行期间服务端的引擎或工作进程有增减,其计数一概不给",
    ),
    "remark.fullest": ("fullest of {count} KV pools: {name}", "{count} 个 KV 池中最满的:{name}"),
    "remark.audit": ("audit {id} failed", "审计 {id} 未通过"),
    "notice.audits": ("Audits that failed:", "未通过的审计:"),
    "join": (" ", ""),
    "compare.title": ("{members}, compared", "对比:{members}"),
    "compare.lead": (
        "Did the answer move, by more than noise, and may a cause be named? Each is compared with {first}.",
        "结论变了吗、是否超出噪声、能不能认定原因?各项都与 {first} 比较。",
    ),
    "compare.built": ("the raw files of {members}", "{members} 的原始文件"),
    "section.moved": ("What moved?", "什么变了?"),
    "section.figures": ("Figures, overlaid", "叠加的图"),
    "section.knees": ("Did the knees move?", "拐点移动了吗?"),
    "section.pool": ("Memory side by side", "显存对照"),
    "section.causes": ("What differed, and what may be called a cause", "有哪些不同,什么能算原因"),
    "section.drift": ("Repeats and drift", "重复测量与漂移"),
    "table.verdicts": ("Verdict by level", "各档判定"),
    "table.knees_compared": ("Knees, side by side", "拐点对照"),
    "table.accounts": ("Memory account, GiB", "显存账,GiB"),
    "table.inputs": ("Inputs that differ", "不同的输入"),
    "table.repeats": ("Every pass through the sweep", "每一遍的数值"),
    "table.drift": ("Drift between passes", "各遍之间的漂移"),
    "column.kind": ("Kind", "类别"),
    "column.name": ("Name", "名称"),
    "column.repeat": ("Pass", "遍"),
    "column.passes": ("Passes", "遍数"),
    "column.mean": ("Mean", "均值"),
    "column.spread_pct": ("Standard deviation, %", "标准差,%"),
    "column.trend_pct": ("Last against first, %", "末遍比首遍,%"),
    "column.verdict": ("Verdict", "判定"),
    "column.moved_metrics": ("What moved", "变化的指标"),
    "column.agree_pct": ("Same in resampled pairs, %", "重采样配对相同率,%"),
    "repeats.compared": (
        "Arithmetic means. The differences above are of geometric means over the passes, figures and knees of pass 1.",
        "此处为算术均值。上面的差异取各遍的几何均值；图与拐点取第一遍。",
    ),
    "repeats.note": (
        "All other numbers of this page are of pass 1. The spread is over all passes; with two of them it is a rough guess.",
        "本页其他数字都来自第 1 遍。标准差取自全部各遍;只有两遍时只是粗略估计。",
    ),
    "skip": ("Skip to the verdict", "跳到结论"),
    "barred": ("barred by audit {audits}", "被审计 {audits} 禁用"),
}


@dataclass(frozen=True)
class Words:
    """Look words up in one language and fill in their numbers.

    ``read_from`` names the table of levels where that is all a report was built from: measured numbers come from there.
    """

    language: str = "en"
    read_from: str | None = None

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}; found {self.language!r}")

    @property
    def place(self) -> int:
        """Index of the language in a pair of texts."""
        return LANGUAGES.index(self.language)

    def __call__(self, key: str, **numbers: object) -> str:
        """Return the text of ``key`` with its placeholders filled."""
        text = WORDS[key][self.place]
        return text.format(**numbers) if numbers else text

    def has(self, key: str) -> bool:
        """True when there is such a text."""
        return key in WORDS
