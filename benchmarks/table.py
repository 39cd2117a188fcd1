"""The table of ratios: a row of ``results.csv`` for each library, and ``RESULTS.md`` made of them.

Rows are replaced when their library is measured again; each says which version it is of.
"""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from experiments.runs import environment, markdown, write_section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rounds import Case, Found, Measurement

FOLDER = Path(__file__).parent
ROWS, PAGE = FOLDER / "results.csv", FOLDER / "RESULTS.md"
TITLE = "The table that `make bench` writes"
KEYS = ["case", "library"]
NUMBERS = ["ratio", "low", "high", "seconds", "error", "rounds"]
PEERS = (
    *("numpy", "scipy", "numba", "tensorly", "pyttb", "pygenten", "jax", "ott-jax", "pot"),
    "crowd-kit",
)


def version() -> str:
    """Return the commit that is measured, and whether files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def row_of(measurements: Sequence[Measurement]) -> dict[str, object]:
    """Return the medians of the quiet rounds of a library, or of all if no round was quiet."""
    sound = [known for known in measurements if not known.failure]
    if not sound:
        return {"remark": measurements[-1].failure}
    quiet = [known for known in sound if known.is_quiet]
    used = quiet or sound
    ratios = [known.ratio for known in used if known.ratio is not None]
    seconds = [known.seconds for known in used if known.seconds is not None]
    return {
        "ratio": statistics.median(ratios) if ratios else None,
        "low": min(ratios, default=None),
        "high": max(ratios, default=None),
        "seconds": statistics.median(seconds) if seconds else None,
        "error": used[-1].error,
        "rounds": len(used),
        "remark": used[-1].remark if quiet else "others used the machine",
    }


def write(cases: Sequence[Case], found: Found, measured: str) -> None:
    """Put what was found into both files, and leave the rows of all others as they are."""
    new = pd.DataFrame(
        {"case": title, "library": library, **row_of(known), "version": measured}
        for title, libraries in found.items()
        for library, known in libraries.items()
    )
    old = [pd.read_csv(ROWS)] if ROWS.exists() else []
    rows = pd.concat([*old, new], ignore_index=True).drop_duplicates(KEYS, keep="last")
    order = {
        (case.title, library): (number, place)
        for number, case in enumerate(cases)
        for place, library in enumerate(case.libraries)
    }
    rows = rows.reindex(columns=[*KEYS, *NUMBERS, "remark", "version"])
    rows = rows.astype(dict.fromkeys(NUMBERS, float))
    rows = rows[[key in order for key in zip(rows["case"], rows["library"], strict=True)]]
    places = [order[key] for key in zip(rows["case"], rows["library"], strict=True)]
    rows = rows.iloc[sorted(range(len(rows)), key=places.__getitem__)]
    unfinished = ROWS.with_suffix(".new")
    rows.to_csv(unfinished, index=False, float_format="%.4g")
    unfinished.replace(ROWS)
    body = f"{environment(PEERS)}.\n\n{page_table(rows)}"
    write_section(PAGE, TITLE, body)


def page_table(rows: pd.DataFrame) -> str:
    """Return the rows as a table to read: each case is named once."""
    table = pd.DataFrame(
        {
            "library": rows["library"],
            "multiple": [text(ratio, ".3g") for ratio in rows["ratio"]],
            "rounds": [spread(row) for row in rows.to_dict("records")],
            "error": [text(error, ".4g") for error in rows["error"]],
            "seconds": [text(seconds, ".3g") for seconds in rows["seconds"]],
            "version": rows["version"],
            "remark": rows["remark"].fillna(""),
        }
    )
    repeated = rows["case"].eq(rows["case"].shift())
    table.index = pd.Index(rows["case"].mask(repeated, ""), name="case")
    return markdown(table)


def spread(row: dict[str, float]) -> str:
    """Return the smallest and largest ratio of the rounds, if there are some."""
    if np.isnan(row["rounds"]):
        return ""
    if row["rounds"] < 2 or row["low"] == row["high"]:
        return f"{row['rounds']:.0f}"
    return f"{row['rounds']:.0f}: {row['low']:.3g} to {row['high']:.3g}"


def text(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)
