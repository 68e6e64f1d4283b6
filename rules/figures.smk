# Figures: draw every figure of a sweep.
# Needs the table of levels, its context, and the tables below each level.
# Leaves results/figures: one SVG a figure, PNG beside it if configured, and figures.json with titles and captions.

LATENCY = "What does each further token per second cost?"
SCALING = "Where does throughput leave linear scaling?"
HARDWARE = "How near is the hardware to its limits?"
TAIL = "What is the tail made of?"
MEMORY = "How much KV cache is really left?"


rule plot_figures:
    input:
        levels="results/metrics/{machine}/{round}/{sweep}/levels.parquet",
        context="results/metrics/{machine}/{round}/{sweep}/context.json",
        itl_histogram=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/itl_histogram.parquet"),
        launch=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/launch.parquet"),
        gauges=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/gauges.parquet"),
        request_spans=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/request_spans.parquet"),
        stall_spans=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/stall_spans.parquet"),
        texts=["report/texts/en.yaml", "report/texts/zh.yaml"],
        library=library("plot_figures"),
    output:
        figure("tradeoff", LATENCY),
        figure("scaling", SCALING),
        figure("marginal", SCALING),
        figure("utilization", HARDWARE),
        figure("itl_split", TAIL),
        figure("itl_distribution", TAIL),
        figure("ttft_by_launch", TAIL),
        figure("timeline", TAIL),
        figure("request_timeline", TAIL),
        figure("e2el", LATENCY),
        figure("kv_pool", MEMORY),
        index="results/figures/{machine}/{round}/{sweep}/figures.json",
    log:
        "logs/plot_figures/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        language=lookup("report/language", within=PLAN.config),
        formats=lookup("report/figure_formats", within=PLAN.config),
    message:
        "Figures of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/plot_figures.py"
