# Helpers of the rules: each is one line around a function of scripts/ that has tests.
# Needs the configuration (rules/config.smk).
# Leaves PLAN, the look-ups below, and this process as the owner of every server the run starts.

from scripts.harness import lock, process, wiring

try:
    PLAN = wiring.load(config, ROOT)
except SweepError as error:
    raise WorkflowError(str(error)) from None
if workflow.cores == 0:
    raise WorkflowError("--cores 0 leaves no core to run anything on; say --cores 1, and -n to see what would run")
process.claim(ROOT)
wiring.quote_interpreter()
lock.clear_stale_workflow_lock(Path.cwd())
process.end_jobs_on_termination()


wildcard_constraints:
    machine=r"[a-z0-9][a-z0-9-]*",
    round=r"[a-z0-9][a-z0-9._-]*",
    sweep=r"[a-z0-9][a-z0-9_]*",
    level=r"[1-9][0-9]*",
    repeat=r"[2-9]|[1-9][0-9]+",
    comparison=r"[a-z0-9][a-z0-9._-]*",


def targets(pattern):
    return wiring.targets(PLAN, pattern)


def per_level(pattern):
    return lambda wildcards: wiring.per_level(PLAN, wildcards, pattern)


def per_pass(pattern):
    return lambda wildcards: wiring.per_pass(PLAN, wildcards, pattern)


def if_repeated(pattern):
    return lambda wildcards: wiring.repeated(PLAN, wildcards, pattern)


def members(pattern, over="sweep"):
    return lambda wildcards: wiring.members(PLAN, wildcards.comparison, pattern, over)


def comparison_groups(wildcards):
    return wiring.comparison_groups(PLAN, wildcards.comparison)


def comparisons():
    return [f"results/compare/{one.name}/compare.html" for one in PLAN.comparisons]


def library(script):
    return wiring.library(ROOT, script)


def settings(wildcards):
    return wiring.settings(PLAN, wildcards, ROOT)


def report_settings(wildcards):
    return wiring.report_settings(PLAN, wildcards, ROOT)


def priority(wildcards):
    return wiring.priority(PLAN, wildcards)


def figure(name, question):
    return report(
        f"results/figures/{{machine}}/{{round}}/{{sweep}}/{name}.svg",
        caption=f"../report/captions/{name}.rst",
        category=question,
        labels={"machine": "{machine}", "round": "{round}", "sweep": "{sweep}", "figure": name},
    )


def table(name, question):
    return report(
        f"results/tables/{{machine}}/{{round}}/{{sweep}}/{name}.csv",
        caption=f"../report/captions/{name}.rst",
        category=question,
        labels={"machine": "{machine}", "round": "{round}", "sweep": "{sweep}", "figure": name},
    )
