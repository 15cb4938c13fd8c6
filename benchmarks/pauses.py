"""What stands still, and for how long, when a partition moves, a stage is rescaled or a savepoint is taken; drawn.

    python benchmarks/pauses.py                     # 1 MB, 100 MB and 1 GB of state; writes docs/assets/pauses.svg
    python benchmarks/pauses.py --megabytes 1 --times 2 --picture /tmp/pauses.svg

Some minutes. Runs `moves.py`, `rescale.py` and `savepoint.py`, each on a Redis of its own, with values of 1,000 bytes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import moves, rescale, savepoint

PICTURE: Final = Path(__file__).parent.parent / "docs" / "assets" / "pauses.svg"
VALUE_BYTES: Final = 1_000
GREEN, BROWN, GREY = "#2e7d32", "#c2571a", "#9e9e9e"
GOAL_MS: Final = 100


@dataclass(frozen=True)
class Row:
    """One size of state. Times are milliseconds.

    beside_moves, beside: the rates of another stage during moves and rescales, as shares of those before.
    """

    megabytes: int
    moved: list[int]
    beside_moves: float
    rescaled: list[float]
    beside: float
    savepoint: savepoint.Figures

    def line(self) -> str:
        cut, mid = self.savepoint, statistics.median
        return (
            f"{self.megabytes:>5} MB  moved {_spread(self.moved)}, other stage {self.beside_moves:.0%}"
            f"   rescaled {_spread(self.rescaled)}, other stage {self.beside:.0%}"
            f"   cut {_spread(cut.cuts)}, felt {mid(cut.felt):.1f}"
            f" (without {mid(cut.calm):.1f})   export {cut.export:.0f} MB/s, commits beside it {cut.share:.0%}"
        )


def measure(megabytes: int, times: int) -> Row:
    found = moves.measure(megabytes, 2 * times, 0, 2 * times)
    rescales, rates = rescale.measure(megabytes, times)
    rescaled = [pause for several in rescales.values() for each in several for pause in each.pauses]
    cut = savepoint.measure(megabytes, 5.0, VALUE_BYTES)
    return Row(megabytes, found.collected, rescale.share(found.beside), rescaled, rescale.share(rates), cut)


def draw(rows: Sequence[Row], picture: Path) -> None:
    """Pauses by size of state, and what an export and its neighbours do. Needs matplotlib, of the extra `plots`."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "celeriac", "font.size": 9, "svg.fonttype": "path"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3.4), layout="constrained")
    places = list(range(len(rows)))
    _pauses(axes[0], "a partition moves", [row.moved for row in rows], GREEN)
    _pauses(axes[1], "a partition gets keys by a rescale", [row.rescaled for row in rows], GREEN)
    for axis in axes[:2]:
        axis.axhline(GOAL_MS, color=GREY, linewidth=0.9, linestyle="--")
        axis.set_ylabel("stands still, ms")
    _pauses(
        axes[2], "a savepoint is cut", [row.savepoint.felt for row in rows], BROWN, -0.12, "slowest commit around it"
    )
    _pauses(axes[2], "a savepoint is cut", [row.savepoint.calm for row in rows], GREY, 0.0, "slowest commit without")
    _pauses(axes[2], "a savepoint is cut", [row.savepoint.cuts for row in rows], GREEN, 0.12, "the cut")
    axes[2].set_ylabel("ms")
    axes[2].legend(frameon=False, fontsize=7)
    axes[3].set_title("rate of the others meanwhile", fontsize=9)
    moved, rescaled = [100 * row.beside_moves for row in rows], [100 * row.beside for row in rows]
    axes[3].bar([at - 0.27 for at in places], moved, 0.27, color=GREY)
    axes[3].bar(places, rescaled, 0.27, color=GREEN)
    axes[3].bar([at + 0.27 for at in places], [100 * row.savepoint.share for row in rows], 0.27, color=BROWN)
    axes[3].set_ylabel("% of before")
    legend = ["moves of another stage", "rescale of another stage", "export of a savepoint"]
    axes[3].legend(legend, frameon=False, fontsize=7, loc="upper left")
    for at, row in zip(places, rows, strict=True):
        text = f"{row.savepoint.export:.0f} MB/s"
        axes[3].text(at + 0.27, 100 * row.savepoint.share + 2, text, fontsize=7, ha="center")
    for axis in axes:
        axis.set_xticks(places, [_size(row.megabytes) for row in rows])
        axis.set_xlim(-0.5, len(rows) - 0.5)
        axis.set_ylim(bottom=0)
        axis.grid(color="#e0e0e0", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[3].set_ylim(top=1.4 * axes[3].get_ylim()[1])
    figure.savefig(picture, format="svg", facecolor="white", metadata={"Date": None})


def _pauses(
    axis: Any, title: str, samples: Sequence[Sequence[float]], color: str, shift: float = 0.0, label: str = ""
) -> None:
    """Median, and from the first tenth to the last one, of each size."""
    axis.set_title(title, fontsize=9)
    at = [place + shift for place in range(len(samples))]
    middles = [statistics.median(each) for each in samples]
    low = [middle - _share(each, 0.1) for middle, each in zip(middles, samples, strict=True)]
    high = [_share(each, 0.9) - middle for middle, each in zip(middles, samples, strict=True)]
    axis.errorbar(at, middles, (low, high), fmt="o", color=color, capsize=3, markersize=4, label=label)


def _share(samples: Sequence[float], share: float) -> float:
    return sorted(samples)[round(share * (len(samples) - 1))]


def _spread(samples: Sequence[float]) -> str:
    return f"{statistics.median(samples):.1f} ms median, {_share(samples, 0.9):.1f} at 90 %, {max(samples):.1f} most"


def _size(megabytes: int) -> str:
    return f"{megabytes} MB" if megabytes < 1_000 else f"{megabytes / 1_000:g} GB"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=int, nargs="*", default=[1, 100, 1_000])
    options.add_argument("--times", type=int, default=4)
    options.add_argument("--picture", type=Path, default=PICTURE)
    asked = options.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    rows = []
    for megabytes in asked.megabytes:
        rows.append(measure(megabytes, asked.times))
        print(rows[-1].line(), flush=True)
    draw(rows, asked.picture)


if __name__ == "__main__":
    main()
