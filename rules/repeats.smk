# Repeats: further whole passes through a sweep, each level of each a job of its own, and the table of all passes.
# Needs `load.repeats` above 1 in the round's file, or further passes that lie in results/raw.
# Leaves results/raw/.../repeats/N/c<level>, the same below results/metrics, and repeats.parquet and repeats.csv.


use rule measure_level as measure_repeat with:
    output:
        cell="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/cell.json",
        requests="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/requests.parquet",
        chunks="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/chunks.parquet",
        scrapes="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/scrapes.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/telemetry.parquet",
        boot="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/boot.json",
        startup_log="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/startup.log",
    log:
        "logs/measure_repeat/{machine}/{round}/{sweep}/{repeat}/c{level}.log",
    message:
        "Load of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}, pass {wildcards.repeat}"


use rule scrape_counters as scrape_repeat with:
    input:
        cell="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/cell.json",
        scrapes="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/scrapes.parquet",
        startup_log="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/startup.log",
        requests="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/requests.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/telemetry.parquet",
        library=library("scrape_counters"),
    output:
        counters="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/counters.parquet",
        gauges="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/gauges.parquet",
    log:
        "logs/scrape_repeat/{machine}/{round}/{sweep}/{repeat}/c{level}.log",
    message:
        "Counters of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}, pass {wildcards.repeat}"


use rule compute_metrics as compute_repeat with:
    input:
        cell="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/cell.json",
        requests="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/requests.parquet",
        chunks="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/chunks.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/telemetry.parquet",
        counters="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/counters.parquet",
        library=library("compute_metrics"),
    output:
        metrics="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/metrics.parquet",
        itl_histogram="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/itl_histogram.parquet",
        launch="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/launch.parquet",
        replicates="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/replicates.parquet",
        request_spans="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/request_spans.parquet",
        stall_spans="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/stall_spans.parquet",
        token_rate="results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/token_rate.parquet",
    log:
        "logs/compute_repeat/{machine}/{round}/{sweep}/{repeat}/c{level}.log",
    message:
        "Metrics of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}, pass {wildcards.repeat}"


rule aggregate_repeats:
    input:
        first=per_level("results/metrics/{machine}/{round}/{sweep}/c{level}/metrics.parquet"),
        further=per_pass("results/metrics/{machine}/{round}/{sweep}/repeats/{repeat}/c{level}/metrics.parquet"),
        library=library("aggregate_repeats"),
    output:
        repeats="results/metrics/{machine}/{round}/{sweep}/repeats.parquet",
        csv="results/metrics/{machine}/{round}/{sweep}/repeats.csv",
    log:
        "logs/aggregate_repeats/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    message:
        "Table of every pass of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/aggregate_repeats.py"
