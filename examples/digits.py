"""The demo: decompose scikit-learn's digits and write everything a user takes away.

Run ``make demo``, or ``python examples/digits.py FOLDER``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import polyad
from polyad.report import plot_components, write_report

N_COMPONENTS = 24


def main(folder: Path) -> None:
    """Fit, look, save, and say what was done."""
    folder.mkdir(parents=True, exist_ok=True)
    images, digits = polyad.datasets.load_digits()
    train, test = train_test_split(range(len(digits)), test_size=0.3, random_state=0)
    train_images, test_images = images.isel(image=train), images.isel(image=test)

    model = polyad.CP(N_COMPONENTS, ridge=1.0, tol=1e-4, random_state=0, verbose=1).fit(
        train_images
    )

    for mode in model.modes_:
        model.factor_table(mode).to_csv(folder / f"factor_{mode}.csv")
    model.save(folder / "model.polyad")
    plot_components(model, max_components=6).savefig(folder / "components.png", dpi=120)
    write_report(
        model, folder / "report.html", X=test_images, title="Digits: images x rows x columns"
    )

    again = polyad.load(folder / "model.polyad")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    classifier.fit(again.transform(train_images), digits[train])
    accuracy = classifier.score(again.transform(test_images), digits[test])

    python = os.path.relpath(sys.executable)
    shape = " x ".join(map(str, train_images.shape))
    print(
        f"""
polyad {polyad.__version__}: CP with {N_COMPONENTS} components of scikit-learn's digits ({shape})
  fit        {model.status_.value} after {model.n_iter_} iterations
  explained  {model.score(train_images):.1%} of the variation of the images fitted,
             {model.score(test_images):.1%} of {len(test)} images that the model had not seen
  features   {N_COMPONENTS} numbers per image name the digit of {accuracy:.1%} of the unseen images

Written to {folder}/
  report.html      the fit and its components on one page
  components.png   the first components as a picture
  factor_*.csv     one labelled table per mode
  model.polyad     the model; read it with polyad.load

Try next
  {python} -c "import polyad; print(polyad.load('{folder}/model.polyad').summary())"
  README.md        a table of events to labelled components in ten lines
"""
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
