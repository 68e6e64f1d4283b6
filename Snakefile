# Measure an LLM server under rising concurrency and report on it: `snakemake --cores 1 all`.
# Rounds, levels and report options are in config/; every step is a file in rules/.

from snakemake.utils import min_version

min_version("9.0")


report: "report/workflow.rst"


include: "rules/config.smk"
include: "rules/common.smk"
include: "rules/measure.smk"
include: "rules/counters.smk"
include: "rules/metrics.smk"
include: "rules/repeats.smk"
include: "rules/findings.smk"
include: "rules/figures.smk"
include: "rules/report.smk"
include: "rules/compare.smk"


rule all:
    default_target: True
    input:
        targets("results/reports/{machine}/{round}/{sweep}/report.html"),
        targets("results/metrics/{machine}/{round}/{sweep}/levels.csv"),
        comparisons(),
