# Report: the tables of a sweep and its self-contained page.
# Needs the table of levels, its context, the figures and the levels' records.
# Leaves results/tables and results/reports.


rule write_report:
    input:
        levels="results/metrics/{machine}/{round}/{sweep}/levels.parquet",
        context="results/metrics/{machine}/{round}/{sweep}/context.json",
        findings="results/metrics/{machine}/{round}/{sweep}/findings.json",
        index="results/figures/{machine}/{round}/{sweep}/figures.json",
        cells=per_level("results/raw/{machine}/{round}/{sweep}/c{level}/cell.json"),
        repeats=if_repeated("results/metrics/{machine}/{round}/{sweep}/repeats.parquet"),
        template="report/template.html.j2",
        texts=["report/texts/en.yaml", "report/texts/zh.yaml"],
        library=library("write_report"),
    output:
        tables=[
            table("counters", HARDWARE),
            table("slo", LATENCY),
            table("audits", "Can the numbers be trusted?"),
        ],
        page=report(
            "results/reports/{machine}/{round}/{sweep}/report.html",
            caption="../report/captions/report.rst",
            category="The whole report",
            labels={"machine": "{machine}", "round": "{round}", "sweep": "{sweep}", "figure": "report"},
        ),
    log:
        "logs/write_report/{machine}/{round}/{sweep}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        language=lookup("report/language", within=PLAN.config),
    message:
        "Report of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/write_report.py"
