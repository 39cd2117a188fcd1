"""BBC News: articles x words x words, as in the SWIFT paper.

    POLYAD_DATA=/path/to/data python -m experiments.swift.bbc --parts develop,table1,table2 --jobs 2

400 articles, 100 words, co-occurrence in sentences; 5 folds, training : validation : test =
3 : 1 : 1. The training articles are factorized without their classes, the others are projected,
and a lasso logistic regression on the article factor predicts the class. Everything that the
paper leaves open is settled by the part ``develop`` on articles that the evaluation never sees
(`bbc_develop`). Finished units of work are kept in ``bbc.csv``: a run that was stopped goes on.
Results go to ``RESULTS.md``, figures to ``runs/``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.runs import (
    Store,
    command,
    environment,
    markdown,
    numbers,
    run_units,
    words,
    write_section,
)
from experiments.swift import bbc_report as report
from experiments.swift.articles import N_DEVELOPMENT, POOL_SEED, load_articles, pools
from experiments.swift.bbc_develop import ABLATION, develop, load_settings
from experiments.swift.bbc_work import FEW_LABELS, NOISE_LEVELS, RAW, do_unit, units
from experiments.swift.methods import METHODS, OURS, settings_at
from experiments.tables import mean_table, plot_curves

if TYPE_CHECKING:
    Unit = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
RUNS = HERE / "runs"
PARTS = ("develop", "table1", "table2", "table5", "noise", "extra")


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=words, default=PARTS, help=f"some of {','.join(PARTS)}")
    parser.add_argument("--samples", type=int, default=5, help="samples of 400 articles")
    parser.add_argument("--starts", type=int, default=3, help="random starts (table1)")
    parser.add_argument("--ranks", type=numbers, default=(5, 10, 20, 40))
    parser.add_argument("--noise-rank", type=int, default=10, help="of the noise curves and extra")
    parser.add_argument("--cost-ranks", type=numbers, default=(20,), help="of table5")
    parser.add_argument("--methods", type=words, default=tuple(METHODS), help="names, by commas")
    parser.add_argument("--tune-ranks", type=numbers, default=(10, 40), help="of development")
    parser.add_argument("--tune-samples", type=int, default=2, help="development samples")
    parser.add_argument("--tune-folds", type=int, default=3, help="folds of each of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--max-minutes", type=float, default=120.0, help="per part")
    options = parser.parse_args(arguments)
    strange = [part for part in options.parts if part not in PARTS]
    strange += [name for name in options.methods if name not in METHODS]
    if strange:
        parser.error(f"{strange[0]!r} is not known; parts: {PARTS}; methods: {tuple(METHODS)}")
    return options


def main() -> None:
    """Run what the command line asks for."""
    options = read_options()
    store = Store(HERE / "bbc.csv")
    for part in PARTS:
        if part not in options.parts:
            continue
        print(f"== {part}")
        if part == "develop":
            develop(store, options)
            settings = load_settings()
            write_section(RESULTS, "BBC News: settings", _describe_settings(settings))
            continue
        settings = load_settings()
        own = evaluation_units(part, options, settings)
        run_units(own, do_unit, store, jobs=options.jobs, max_minutes=options.max_minutes)
        title, body = _write(part, store.table(own), options, store, settings)
        write_section(RESULTS, f"BBC News: {title}", f"{_origin(options)}\n\n{body}")
        print(body)
    print(f"results written to {RESULTS}")


def evaluation_units(
    part: str, options: argparse.Namespace, settings: dict[str, Any]
) -> list[Unit]:
    """Return the units of a part of the evaluation."""
    tuned = settings["methods"]
    untuned = [name for name in options.methods if name not in tuned]
    if untuned and part in ("table1", "noise", "extra"):
        message = f"{untuned} have no settings yet: run the part 'develop' with them first."
        raise SystemExit(message)
    construction = settings["construction"]
    samples = range(options.samples)
    if part == "table1":
        found: list[Unit] = []
        for name in options.methods:
            kinds = [
                {
                    "method": name,
                    "rank": rank,
                    **settings_at(tuned[name], rank),
                    "few_labels": list(FEW_LABELS),
                }
                for rank in options.ranks
                if rank <= METHODS[name].max_rank
            ]
            starts = min(options.starts, METHODS[name].max_starts)
            found += units(part, construction, kinds, samples=samples, starts=starts)
        return found
    if part == "table2":
        kinds = [{"method": name} for name in RAW]
    elif part == "table5":
        kinds = [
            {"method": OURS, "cost": cost, "rank": rank, **settings_at(chosen, rank)}
            for cost, chosen in settings["ablation"].items()
            for rank in options.cost_ranks
        ]
    elif part == "noise":
        rank = options.noise_rank
        kinds = [
            {"method": name, "rank": rank, "noise": noise, **settings_at(tuned[name], rank)}
            for name in options.methods
            for noise in NOISE_LEVELS
        ]
    else:
        return _extra_units(options, settings)
    return list(units(part, construction, kinds, samples=samples))


def _extra_units(options: argparse.Namespace, settings: dict[str, Any]) -> list[Unit]:
    """Return the units that ask what costs can do that a likelihood cannot.

    Costs of the words from elsewhere: from the development articles. And two other tensors: short
    articles, of three sentences, and the one with the counts of the words on the diagonal.
    """
    tuned = settings["methods"]
    rank = options.noise_rank
    ours = settings_at(tuned[OURS], rank)
    variants = {
        "chosen costs": settings["costs"],
        "words from development": {**settings["costs"], "features": "development"},
    }
    others = {
        "whole articles": {},
        "three sentences": {"n_sentences": 3},
        "with the diagonal": {"diagonal": True},
    }
    found: list[Unit] = []
    for title, other in others.items():
        construction = {**settings["construction"], **other}
        kinds = [
            {
                "method": OURS,
                "variant": f"{OURS}, {name}",
                "text": title,
                "rank": rank,
                "parameters": {**ours["parameters"], "costs": costs},
                "scaling": ours["scaling"],
            }
            for name, costs in variants.items()
        ]
        kinds += [
            {
                "method": name,
                "variant": name,
                "text": title,
                "rank": rank,
                **settings_at(tuned[name], rank),
            }
            for name in ("PoissonCP", "NonnegativeCP")
        ]
        found += units("extra", construction, kinds, samples=range(options.samples))
    return found


def _write(
    part: str,
    table: pd.DataFrame,
    options: argparse.Namespace,
    store: Store,
    settings: dict[str, Any],
) -> tuple[str, str]:
    """Return the title and the text of a part's results, and draw its figure."""
    names = list(options.methods)
    if part == "table1":
        title = "accuracy by rank"
        plot_curves(table, names, "rank", RUNS / "bbc_rank.png", bold=OURS)
        few = report.few_labels_table(table, names)
        return title, mean_table(table, names, OURS, paper=report.PAPER) + "\n" + few
    if part == "table2":
        ours = store.table(evaluation_units("table1", options, settings))
        ours = ours[ours["method"] == OURS] if len(ours) else ours
        return "classifiers of the raw tensor", report.raw_table(table, ours)
    if part in ("table5", "noise"):
        # The first start of table1 is the rest of these: the chosen costs, and no noise.
        first = store.table(evaluation_units("table1", options, settings))
        if len(first) == 0:
            message = (
                f"The part {part!r} is compared with 'table1': run that too, with the same ranks."
            )
            raise SystemExit(message)
        first = first[first["start"] == 0]
    if part == "table5":
        costs = ["chosen", *ABLATION]
        chosen = first[first["method"] == OURS].assign(cost="chosen")
        chosen = chosen[chosen["rank"].isin(options.cost_ranks)]
        table = pd.concat([chosen, table], ignore_index=True)
        figure = RUNS / "bbc_costs.png"
        plot_curves(table, costs, "rank", figure, column="cost", bold="chosen")
        return "costs", mean_table(table, costs, "chosen", column="cost", paper=report.PAPER)
    if part == "noise":
        title = f"noise (R = {options.noise_rank})"
        quiet = first[first["rank"] == options.noise_rank].assign(noise=0.0)
        table = pd.concat([quiet, table], ignore_index=True)
        plot_curves(table, names, "noise", RUNS / "bbc_noise.png", bold=OURS)
        return title, mean_table(table, names, OURS, across="noise")
    texts = []
    for title, own in table.groupby("text", sort=False):
        variants = list(dict.fromkeys(own["variant"]))
        texts.append(f"{title}:\n\n" + mean_table(own, variants, "PoissonCP", column="variant"))
    return "costs from elsewhere, other tensors", "\n".join(texts)


def _origin(options: argparse.Namespace) -> str:
    samples = f"{options.samples} samples of 400 evaluation articles (seeds 0 to"
    return (
        f"`{command()}`\n\n{environment()}. {samples} {options.samples - 1}), 5 folds. Means over "
        "samples, ± the standard deviation between samples; differences are paired by sample, "
        "with 95 % intervals (Student's t over samples, whose articles overlap)."
    )


def _describe_settings(settings: dict[str, Any]) -> str:
    """Return what development chose, as text."""
    lines = [
        f"`{command()}`",
        "",
        environment(),
        "",
        f"{len(load_articles())} articles without duplicates and repeated titles; {N_DEVELOPMENT} "
        f"of them (seed {POOL_SEED}) settle what is below; the other {len(pools()[1])} are for the "
        "evaluation.",
        "",
        "Classifiers of the raw tensor, by construction (development articles). A word does not "
        "occur together with itself, so the diagonal is left out; the words are those of the best "
        "mean without it:",
        "",
        markdown(pd.DataFrame(settings["raw"]).set_index("words")),
    ]
    if "cost_scores" in settings:
        lines += [
            "Costs from the data (development, R = 20; the best are used):",
            "",
            markdown(pd.DataFrame(settings["cost_scores"]).set_index("samples")),
        ]
    rows = [
        {
            "method": name,
            "scaling": chosen["scaling"],
            "rank": rank,
            "parameters": json.dumps(own["parameters"]),
            "development accuracy": own["accuracy"],
        }
        for name, chosen in {**settings["methods"], **settings.get("ablation", {})}.items()
        for rank, own in {**chosen["ranks"], "all": chosen["for all ranks"]}.items()
    ]
    told = "Parameters; those of all ranks have the best mean over them and are not used here:"
    lines += [told, "", markdown(pd.DataFrame(rows).set_index("method"))]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
