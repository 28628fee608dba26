"""Run directories as training leaves them, without training."""

import json

from kemeny.runs.directory import Run
from kemeny.runs.settings import Settings, to_flat


def fake_run(path, returns, costs=None, env="Walk-v0", rates=(), **changes):
    """A run with an evaluation every 100 steps and ρ̂ every 50; `changes` are settings that are not the default's."""
    path.mkdir()
    settings = {**to_flat(Settings()), **changes}
    (path / "config.json").write_text(json.dumps({"env": env, "env_is_id": True, "settings": settings}))
    lines = [
        {"steps": 100 * (i + 1), "returns_1000": [value - 1, value + 1], "average_costs": costs and [costs, costs]}
        for i, value in enumerate(returns)
    ]
    (path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [{"steps": 50 * (i + 1), "rate": rate, "outcome": 0} for i, rate in enumerate(rates)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return Run.open(path)
