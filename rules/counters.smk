# Counters: read the KV pool from the startup log, and a level's counters from the scraped pages.
# Needs raw files only.
# Leaves kv_pool.json for a sweep and counters.parquet for each level.


rule capture_kv_pool:
    input:
        boot="results/raw/{machine}/{round}/{sweep}/server/boot.json",
        startup_log="results/raw/{machine}/{round}/{sweep}/server/startup.log",
        library=library("capture_kv_pool"),
    output:
        "results/metrics/{machine}/{round}/{sweep}/kv_pool.json",
    log:
        "logs/capture_kv_pool/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    message:
        "KV pool of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/capture_kv_pool.py"


rule scrape_counters:
    input:
        cell="results/raw/{machine}/{round}/{sweep}/c{level}/cell.json",
        scrapes="results/raw/{machine}/{round}/{sweep}/c{level}/scrapes.parquet",
        startup_log="results/raw/{machine}/{round}/{sweep}/c{level}/startup.log",
        requests="results/raw/{machine}/{round}/{sweep}/c{level}/requests.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/c{level}/telemetry.parquet",
        library=library("scrape_counters"),
    output:
        counters="results/metrics/{machine}/{round}/{sweep}/c{level}/counters.parquet",
        gauges="results/metrics/{machine}/{round}/{sweep}/c{level}/gauges.parquet",
    log:
        "logs/scrape_counters/{machine}/{round}/{sweep}/c{level}.log",
    conda:
        "../envs/analysis.yaml"
    message:
        "Counters of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}"
    script:
        "../scripts/scrape_counters.py"
