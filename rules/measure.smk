# Measure: describe the machine and its peak rates, start the server, measure one concurrency level.
# Needs an open round of this machine; the files of every other round have no rule here and are source data.
# Leaves results/raw, which no other step writes.

OPEN_ROUNDS = wiring.alternatives(PLAN.measurable_rounds())
THIS_MACHINE = wiring.alternatives([PLAN.machine])


rule describe_machine:
    output:
        "results/raw/{machine}/{round}/machine.json",
    log:
        "logs/describe_machine/{machine}/{round}.log",
    wildcard_constraints:
        machine=THIS_MACHINE,
        round=OPEN_ROUNDS,
    priority: 1000000
    conda:
        "../envs/harness.yaml"
    message:
        "Machine of round {wildcards.round}"
    script:
        "../scripts/describe_machine.py"


rule measure_peaks:
    input:
        machine=ancient("results/raw/{machine}/{round}/machine.json"),
    output:
        "results/raw/{machine}/{round}/peaks.json",
    log:
        "logs/measure_peaks/{machine}/{round}.log",
    wildcard_constraints:
        machine=THIS_MACHINE,
        round=OPEN_ROUNDS,
    priority: 900000
    conda:
        "../envs/harness.yaml"
    threads: workflow.cores
    message:
        "Peak rates of round {wildcards.round}"
    script:
        "../scripts/measure_peaks.py"


rule start_server:
    input:
        machine=ancient("results/raw/{machine}/{round}/machine.json"),
    output:
        boot="results/raw/{machine}/{round}/{sweep}/server/boot.json",
        startup_log="results/raw/{machine}/{round}/{sweep}/server/startup.log",
    log:
        "logs/start_server/{machine}/{round}/{sweep}.log",
    wildcard_constraints:
        machine=THIS_MACHINE,
        round=OPEN_ROUNDS,
    priority: priority
    conda:
        "../envs/harness.yaml"
    threads: workflow.cores
    params:
        settings=settings,
    message:
        "Server of {wildcards.round}/{wildcards.sweep}"
    script:
        "../scripts/start_server.py"


# A level has no input: it attaches to the server that start_server left running, or boots it again. The order comes
# from the priorities. With the boot record as input, even an ancient one, a server that fails to start would re-measure
# every level afterwards (Snakemake deletes the record, and a missing input counts as updated), and a change of settings
# would be hidden from the levels by the server's own re-run.
rule measure_level:
    output:
        cell="results/raw/{machine}/{round}/{sweep}/c{level}/cell.json",
        requests="results/raw/{machine}/{round}/{sweep}/c{level}/requests.parquet",
        chunks="results/raw/{machine}/{round}/{sweep}/c{level}/chunks.parquet",
        scrapes="results/raw/{machine}/{round}/{sweep}/c{level}/scrapes.parquet",
        telemetry="results/raw/{machine}/{round}/{sweep}/c{level}/telemetry.parquet",
        boot="results/raw/{machine}/{round}/{sweep}/c{level}/boot.json",
        startup_log="results/raw/{machine}/{round}/{sweep}/c{level}/startup.log",
    log:
        "logs/measure_level/{machine}/{round}/{sweep}/c{level}.log",
    wildcard_constraints:
        machine=THIS_MACHINE,
        round=OPEN_ROUNDS,
    priority: priority
    conda:
        "../envs/harness.yaml"
    threads: workflow.cores
    params:
        settings=settings,
    message:
        "Load of {wildcards.round}/{wildcards.sweep} at concurrency {wildcards.level}"
    script:
        "../scripts/measure_level.py"
