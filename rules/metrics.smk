# Metrics: what one level's requests, counters and telemetry say, and the table of all levels.
# Needs raw files and counters.
# Leaves metrics.parquet for each level, levels.parquet, levels.csv and context.json for a sweep.


rule compute_metrics:
    input:
        cell="results/raw/{machine}/{round}/{sweep}/c{level}/cell.json",
        requests="results/raw/{machine}/{round}/{sweep}/c{level}/requests.parquet",
        chunks="results/raw/{machine}/{round}/{sweep}/c{level}/chunks.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/c{level}/telemetry.parquet",
        counters="results/metrics/{machine}/{round}/{sweep}/c{level}/counters.parquet",
        library=library("compute_metrics"),
    output:
        metrics="results/metrics/{machine}/{round}/{sweep}/c{level}/metrics.parquet",
        itl_histogram="results/metrics/{machine}/{round}/{sweep}/c{level}/itl_histogram.parquet",
        launch="results/metrics/{machine}/{round}/{sweep}/c{level}/launch.parquet",
        replicates="results/metrics/{machine}/{round}/{sweep}/c{level}/replicates.parquet",
        request_spans="results/metrics/{machine}/{round}/{sweep}/c{level}/request_spans.parquet",
        stall_spans="results/metrics/{machine}/{round}/{sweep}/c{level}/stall_spans.parquet",
        token_rate="results/metrics/{machine}/{round}/{sweep}/c{level}/token_rate.parquet",
    log:
        "logs/compute_metrics/{machine}/{round}/{sweep}/c{level}.log",
    conda:
        "../envs/analysis.yaml"
    message:
        "Metrics of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}"
    script:
        "../scripts/compute_metrics.py"


rule aggregate_levels:
    input:
        metrics=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/metrics.parquet"),
        cells=per_level("results/raw/{machine}/{round}/{sweep}/c{level}/cell.json"),
        replicates=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/replicates.parquet"),
        kv_pool="results/metrics/{machine}/{round}/{sweep}/kv_pool.json",
        machine="results/raw/{machine}/{round}/machine.json",
        peaks="results/raw/{machine}/{round}/peaks.json",
        library=library("aggregate_levels"),
    output:
        levels="results/metrics/{machine}/{round}/{sweep}/levels.parquet",
        csv=report(
            "results/metrics/{machine}/{round}/{sweep}/levels.csv",
            caption="../report/captions/levels.rst",
            category="What was measured at each level?",
            labels={"machine": "{machine}", "round": "{round}", "sweep": "{sweep}", "figure": "levels"},
        ),
        context="results/metrics/{machine}/{round}/{sweep}/context.json",
    log:
        "logs/aggregate_levels/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        report=report_settings,
    message:
        "Table of levels of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/aggregate_levels.py"
