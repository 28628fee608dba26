"""A search for settings by Ray Tune, each trial a run on one CPU: python tune_with_ray.py (pip install 'ray[tune]')

A trial whose node is lost goes on elsewhere from its checkpoint, if RUNS is on storage that all nodes share.
"""

import sys
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

ENV = sys.argv[1] if len(sys.argv) > 1 else "HalfCheetah-v3"
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
RUNS = Path("runs/tune").absolute()


def trial(config: dict) -> None:
    """One run: begun, or gone on with after a failure, with a report for each evaluation."""
    import os

    os.environ["NPROC"] = "1"  # one thread for XLA, which is read when JAX starts
    import kemeny

    def report(record: dict) -> None:
        if record["log"] == "evaluations":
            returns = record["returns_1000"]
            tune.report({"steps": record["steps"], "mean_return": sum(returns) / len(returns)})

    out = RUNS / tune.get_context().get_trial_id()
    settings = {"steps": STEPS, "eval_every": STEPS // 10, "eval_max_steps": 1_000, **config}
    kemeny.train(ENV, out=out, resume_if_exists=True, callback=report, threads=1, **settings)


if __name__ == "__main__":
    scheduler = ASHAScheduler("steps", max_t=STEPS)
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"delta": tune.loguniform(0.005, 0.05), "gae_lambda": tune.uniform(0.7, 0.95), "seed": 0},
        tune_config=tune.TuneConfig(metric="mean_return", mode="max", num_samples=8, scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(RUNS), failure_config=tune.FailureConfig(max_failures=3)),
    )
    best = tuner.fit().get_best_result()
    print(f"The best return: {(best.metrics or {})['mean_return']:.1f}, with {best.config}")
