# Findings: derive a sweep's values and evaluate every rule.
# Needs the table of levels and its context.
# Leaves derived.json and findings.json.


rule find_findings:
    input:
        levels="results/metrics/{machine}/{round}/{sweep}/levels.parquet",
        context="results/metrics/{machine}/{round}/{sweep}/context.json",
        texts=["report/texts/en.yaml", "report/texts/zh.yaml"],
        library=library("find_findings"),
    output:
        derived="results/metrics/{machine}/{round}/{sweep}/derived.json",
        findings="results/metrics/{machine}/{round}/{sweep}/findings.json",
    log:
        "logs/find_findings/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        language=lookup("report/language", within=PLAN.config),
    message:
        "Findings of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/find_findings.py"
