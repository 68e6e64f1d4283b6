# Compare: sweeps of two rounds, machines or engines side by side.
# Needs metrics of every member; computes on raw rounds copied from anywhere and never measures by itself.
# Leaves results/compare/<comparison>: compare.html, comparison.json, tables as CSV, overlaid figures.


rule compare_sweeps:
    input:
        levels=members("results/metrics/{machine}/{round}/{sweep}/levels.parquet"),
        contexts=members("results/metrics/{machine}/{round}/{sweep}/context.json"),
        replicates=members("results/metrics/{machine}/{round}/{sweep}/c{level}/replicates.parquet", "level"),
        repeats=members("results/metrics/{machine}/{round}/{sweep}/repeats.parquet", "pass"),
        template="report/template.html.j2",
        texts=["report/texts/en.yaml", "report/texts/zh.yaml"],
        library=library("compare_sweeps"),
    output:
        page=report(
            "results/compare/{comparison}/compare.html",
            caption="../report/captions/compare.rst",
            category="Did the answer move?",
            labels={"machine": "all", "round": "{comparison}", "sweep": "all", "figure": "compare"},
        ),
        document="results/compare/{comparison}/comparison.json",
        tables=directory("results/compare/{comparison}/tables"),
        figures=directory("results/compare/{comparison}/figures"),
    log:
        "logs/compare_sweeps/{comparison}.log",
    conda:
        "../envs/analysis.yaml"
    params:
        groups=comparison_groups,
        language=lookup("report/language", within=PLAN.config),
        formats=lookup("report/figure_formats", within=PLAN.config),
    message:
        "Comparison {wildcards.comparison}"
    script:
        "../scripts/compare_sweeps.py"


rule compare:
    input:
        comparisons(),
