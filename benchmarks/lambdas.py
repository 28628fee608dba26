"""What a run's last batches say of each λ: how long a gradient can be seen, how it points, and what a step gains.

    python benchmarks/lambdas.py RUN…

For runs with `--gae-lambda auto`, from their newest checkpoints (formulas: `learning/lambda_choice.py`). One table
per run: the product of a λ with itself and its standard error; the cosine of its true gradient with that of the judge,
the longest λ whose product is surely positive; and the gain of a step along its mean gradient, relative to the best.
"""

from pathlib import Path

import numpy as np
import tyro

from kemeny.learning.lambda_choice import LAMBDAS, PRODUCT_MEMORY, STANDARD_ERRORS
from kemeny.runs import checkpoint


def table(path: Path) -> str:
    """Of one run, as Markdown."""
    saved = checkpoint.latest(path)
    product, square, length, batches = (
        saved.arrays[f"lambda_choice/{name}"] for name in ("product", "square", "length", "batches")
    )
    own = np.diag(product)
    judged = min(int(batches) - 1, (1 + PRODUCT_MEMORY) / (1 - PRODUCT_MEMORY))
    error = np.sqrt(np.maximum(square - own**2, 0) / judged)
    longest = max(np.flatnonzero(own > STANDARD_ERRORS * error), default=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = product[:, longest] / np.sqrt(own * own[longest])  # not a number where it cannot be told
        gain = product[:, longest] / np.sqrt(length)
    rows = {
        "product with itself, × 1,000": [f"{1e3 * p:.1f} ± {1e3 * e:.1f}" for p, e in zip(own, error, strict=True)],
        f"cosine with λ = {LAMBDAS[longest]:g}": ["–" if np.isnan(value) else f"{value:.2f}" for value in cosine],
        "gain": [f"{value:.2f}" for value in gain / gain.max()],
    }
    head = f"| {path.name}, {saved.facts['steps']:,} steps | {' | '.join(f'λ = {value:g}' for value in LAMBDAS)} |"
    lines = [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join([head, "|---" * (1 + len(LAMBDAS)) + "|", *lines])


def main(runs: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Print the tables.

    Args:
        runs: Run directories.
    """
    print("\n\n".join(table(path) for path in runs))


if __name__ == "__main__":
    tyro.cli(main)
