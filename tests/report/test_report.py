"""The HTML page and the pictures: complete, self-contained, safe with any label."""

import base64
import io
import os
import struct
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from sklearn.exceptions import NotFittedError

import polyad
from polyad import CP, QMF, LabelledTensor
from polyad.datasets import make_low_rank
from polyad.exceptions import InvalidInputError, MissingPackageError
from polyad.report import html, plot_components, write_report

SHAPE = (8, 6, 5)
NASTY = ["<script>alert(1)</script>", "a & b", "$x$", r"$\frac{$", '"quoted"', "x" * 60]
VOID = {"meta", "img", "br", "hr", "link", "input"}


def data(modes=("patient", "drug & dose", "$week$")):
    tensor, _ = make_low_rank(SHAPE, 3, noise=0.1, random_state=0)
    labels = [[f"p{k}" for k in range(SHAPE[0])], NASTY, None]
    return LabelledTensor(tensor, modes=modes, labels=labels)


@pytest.fixture(scope="module")
def model():
    return CP(3, random_state=0).fit(data())


@pytest.fixture(scope="module")
def plain():
    return CP(3, random_state=0).fit(data().data)


class Page(HTMLParser):
    """Reads a page, checks that its tags are closed in order, and keeps what it shows."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.references, self.images = [], [], [], []
        self.texts, self.cells, self.source = [], [], text
        self.feed(text)
        self.close()
        assert self.open == [], "unclosed tags"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} has the script attribute {name}"
            if name in ("src", "href", "srcset", "data", "action"):
                self.references.append(value)
        if tag == "img":
            self.images.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, text):
        self.texts.append(text)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(text)

    @property
    def text(self):
        return " ".join(self.texts)


def page_of(model, tmp_path, **options):
    path = write_report(model, tmp_path / "report.html", **options)
    assert path == tmp_path / "report.html"
    assert os.listdir(tmp_path) == ["report.html"]
    return Page(path.read_text(encoding="utf-8"))


def decoded(image):
    kind, _, payload = image["src"].partition(",")
    assert kind == "data:image/png;base64"
    png = base64.b64decode(payload, validate=True)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    pixels = imread(io.BytesIO(png))
    assert pixels.shape[:2] == (height, width)
    return pixels


# The page.


@pytest.fixture
def unpainted(monkeypatch):
    """Leave pictures out, which take most of the time of a page, where only words are looked at."""
    monkeypatch.setattr(html, "_picture", lambda figure: "data:image/png;base64,")


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    return page_of(model, tmp_path_factory.mktemp("page"))


def test_the_page_is_whole_and_needs_no_network(page):
    source = page.source
    assert source.startswith("<!doctype html>")
    assert page.tags.count("html") == page.tags.count("title") == page.tags.count("h1") == 1
    assert not {"script", "iframe", "link", "object"} & set(page.tags)
    assert page.references
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert "url(" not in source
    assert "@import" not in source
    assert len(page.images) == 2
    for image in page.images:
        assert image["alt"]
        assert decoded(image).std() > 0, "an empty picture"


def test_the_page_tells_how_the_fit_ended(model, page):
    assert model.status_.value in page.text
    assert model.status_.advice in page.text
    assert f"{model.objective_:.6g}" in page.cells
    assert str(model.n_iter_) in page.cells
    assert "8 (patient) × 6 (drug & dose) × 5 ($week$)" in page.cells
    assert polyad.__version__ in page.text
    assert 'class="status"' in page.source


@pytest.mark.usefixtures("unpainted")
def test_the_page_marks_an_ending_that_needs_attention(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CP(2, max_iter=1, tol=0, random_state=0).fit(data())
    page = page_of(model, tmp_path)
    assert "Increase max_iter" in page.text
    assert 'class="status warning"' in page.source


def test_labels_are_shown_as_text(page):
    for label in NASTY:
        assert label in page.cells
    assert "drug & dose" in page.cells


def test_numbers_of_the_tables_are_those_of_the_model(model, page):
    leading = model.top(1, "drug & dose", 2)
    for label, number in leading.items():
        place = [k for k, cell in enumerate(page.cells) if cell == label]
        assert any(page.cells[k + 1] == f"{number:.3f}" for k in place)
    (label, lift), *_ = model.top(1, "drug & dose", 1, by="lift").items()
    pairs = list(zip(page.cells, page.cells[1:], strict=False))
    assert (label, f"{lift:.1f}") in pairs
    assert ("component 1", f"{model.summary().loc['component 1', 'weight']:.3g}") in pairs
    assert f"Component 1, weight {model.weights_[1]:.4g}" in page.text


@pytest.mark.usefixtures("unpainted")
def test_a_title_and_the_score_on_given_data(model, page, tmp_path):
    (tmp_path / "report.html").write_text("the page before")
    other = page_of(model, tmp_path, title="<b>bold & brave</b>", X=data(), max_components=1)
    assert other.texts.count("<b>bold & brave</b>") == 2  # in the head and as the heading
    assert page.texts.count("CP with 3 components") == 2
    score = other.cells[other.cells.index("score (explained variation) on the data given") + 1]
    assert score == f"{model.score(data()):.4f}"
    assert "score" not in page.text
    assert "the page before" not in other.source


@pytest.mark.usefixtures("unpainted")
def test_the_score_is_called_what_it_is(tmp_path):
    X, _ = make_low_rank(SHAPE, 2, nonnegative=True, random_state=0)
    y, rough = np.arange(SHAPE[0]) % 2, {"tol": 0.1, "random_state": 0}
    for model, name, classes in [
        (polyad.PoissonCP(1, **rough).fit(X), "explained deviance", None),
        (polyad.WassersteinCP(1, **rough).fit(X), "negative loss per sample", None),
        (polyad.SupervisedCP(1, **rough).fit(X, y), "accuracy", y),
    ]:
        page = page_of(model, tmp_path, X=X, y=classes)
        score = page.cells[page.cells.index(f"score ({name}) on the data given") + 1]
        assert score == f"{model.score(X) if classes is None else model.score(X, y):.4f}"


def test_a_classifier_needs_the_classes_for_its_score(tmp_path):
    X, _ = make_low_rank(SHAPE, 2, nonnegative=True, random_state=0)
    model = polyad.SupervisedCP(1, tol=0.1, random_state=0).fit(X, np.arange(SHAPE[0]) % 2)
    with pytest.raises(InvalidInputError, match="is its accuracy: give y"):
        write_report(model, tmp_path / "report.html", X=X)
    assert not (tmp_path / "report.html").exists()


def test_parameters_are_listed(model, page):
    assert page.cells[page.cells.index("n_components") + 1] == "3"
    assert page.cells[page.cells.index("init") + 1] == "'svd'"
    assert set(model.get_params()) <= set(page.cells)


@pytest.mark.usefixtures("unpainted")
def test_components_beyond_the_limit_are_counted(model, tmp_path):
    page = page_of(model, tmp_path, max_components=1, top=1)
    assert "2 more components are not shown" in page.text
    assert page.tags.count("details") == 1


@pytest.mark.usefixtures("unpainted")
def test_a_model_without_labels(plain, tmp_path):
    page = page_of(plain, tmp_path, max_components=1)
    assert "8 (mode 0) × 6 (mode 1) × 5 (mode 2)" in page.cells
    assert "details" not in page.tags


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("X", [torch.from_numpy(data().data), data().data[:, :, 0]])
def test_every_kind_of_model_has_a_report(X, tmp_path):
    start = [np.ones((n, 1)) for n in X.shape]
    page = page_of(CP(1, init=start).fit(X), tmp_path, X=X)
    assert len(page.images) == 2
    assert page.cells[page.cells.index("init") + 1].startswith("[array([[1.")


@pytest.mark.usefixtures("unpainted")
def test_a_loaded_model_has_the_same_report(model, page, tmp_path):
    model.save(tmp_path / "model.polyad")
    loaded = polyad.load(tmp_path / "model.polyad")
    (tmp_path / "model.polyad").unlink()
    assert page_of(loaded, tmp_path).texts == page.texts


@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("options", [{"X": np.ones((3, 2))}, {"max_components": 0}])
def test_a_failed_report_leaves_the_page_before(model, tmp_path, options):
    path = tmp_path / "report.html"
    for before in (None, "the page before"):
        if before is not None:
            path.write_text(before)
        with pytest.raises(InvalidInputError):
            write_report(model, path, **options)
        assert os.listdir(tmp_path) == ([] if before is None else ["report.html"])
    assert path.read_text() == "the page before"


@pytest.mark.usefixtures("unpainted")
def test_a_missing_folder_is_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_report(model, tmp_path / "nowhere" / "report.html", max_components=1)


def test_an_unfitted_model_has_no_report(tmp_path):
    with pytest.raises(NotFittedError):
        write_report(CP(2), tmp_path / "report.html")
    with pytest.raises(NotFittedError):
        plot_components(CP(2))
    assert os.listdir(tmp_path) == []


# The pictures.


def grid(figure):
    """Return the axes as rows, one per component."""
    n_columns = figure.axes[0].get_gridspec().ncols
    return [figure.axes[k : k + n_columns] for k in range(0, len(figure.axes), n_columns)]


def test_one_row_per_component_and_one_column_per_mode(model):
    figure = plot_components(model)
    assert isinstance(figure, Figure)
    rows = grid(figure)
    assert [len(row) for row in rows] == [2, 2, 2]
    assert [panel.get_title() for panel in rows[0]] == ["drug & dose", r"\$week\$"]
    assert all(panel.get_title() == "" for row in rows[1:] for panel in row)
    for r, row in enumerate(rows):
        assert row[0].get_ylabel() == f"component {r}\nweight {model.weights_[r]:.3g}"


def test_modes_by_name_and_number(model):
    for modes in (["patient"], [0], [-3]):
        rows = grid(plot_components(model, modes=modes, max_components=1))
        assert [panel.get_title() for panel in rows[0]] == ["patient"]
    rows = grid(plot_components(model, modes=["$week$", 0, 1], max_components=1))
    assert [panel.get_title() for panel in rows[0]] == [r"\$week\$", "patient", "drug & dose"]


def test_a_labelled_mode_has_bars_with_its_leading_labels(model):
    panel = grid(plot_components(model, modes=[1], top=4))[0][0]
    leading = model.top(0, 1, 4)
    widths = [bar.get_width() for bar in panel.patches]
    np.testing.assert_allclose(widths[::-1], leading.to_numpy())
    ticks = [tick.get_text() for tick in panel.get_yticklabels()][::-1]
    for tick, label in zip(ticks, leading.index, strict=True):
        text = tick.replace(r"\$", "$")
        assert text == label if len(label) <= 34 else label.startswith(text[:-1])
        assert len(text) <= 34


def test_a_mode_without_labels_is_a_line(model):
    panel = grid(plot_components(model, modes=[2]))[1][0]
    assert len(panel.patches) == 0
    np.testing.assert_allclose(panel.lines[0].get_ydata(), model.factors_[2][:, 1])
    np.testing.assert_array_equal(panel.lines[0].get_xdata(), np.arange(SHAPE[2]))


def test_a_long_mode_is_drawn_with_few_points():
    X = np.random.default_rng(0).random((3, 9001))
    panel = plot_components(CP(1, random_state=0).fit(X)).axes[0]
    assert len(panel.lines[0].get_xdata()) <= 3000
    assert panel.lines[0].get_xdata()[-1] >= 8990


def test_max_components_takes_those_of_largest_weight(model):
    assert len(grid(plot_components(model, max_components=2))) == 2
    assert len(grid(plot_components(model, max_components=50))) == 3
    # Online learning keeps the order of the components while their weights change.
    later = CP(3, random_state=0).fit(data())
    later.weights_ = np.array([1.0, 3.0, 2.0])
    rows = grid(plot_components(later, max_components=2))
    assert [row[0].get_ylabel()[:11] for row in rows] == ["component 1", "component 2"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"modes": []}, "Nothing to draw"),
        ({"max_components": 0}, "Nothing to draw"),
        ({"modes": ["nothing"]}, "'patient', 'drug & dose'"),
        ({"modes": [7]}, r"there are 0\.\.2"),
    ],
)
def test_bad_arguments_are_named(model, options, says):
    with pytest.raises(InvalidInputError, match=says):
        plot_components(model, **options)


def test_names_are_no_names_for_a_model_without(plain):
    with pytest.raises(InvalidInputError, match="the names are: none"):
        plot_components(plain, modes=["patient"])


def test_the_figure_can_be_saved_by_the_user(model, tmp_path):
    """Also with labels that would be broken formulas."""
    plot_components(model, max_components=1).savefig(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000


@pytest.mark.parametrize("use", [plot_components, lambda m: write_report(m, "report.html")])
def test_missing_matplotlib_is_named(model, monkeypatch, tmp_path, use):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=r"pip install 'polyad\[report\]'"):
        use(model)
    assert os.listdir(tmp_path) == []


def test_missing_jinja2_is_named(model, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackageError, match=r"jinja2: .*pip install 'polyad\[report\]'"):
        write_report(model, tmp_path / "report.html")
    assert os.listdir(tmp_path) == []


def test_the_report_module_needs_no_matplotlib_to_be_imported(monkeypatch):
    """That the rest of polyad needs none is seen in a process of its own: test_architecture.py."""
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "polyad.report"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(polyad, "report")
    assert polyad.report.write_report is not write_report
    assert "matplotlib" not in sys.modules


@pytest.mark.usefixtures("unpainted")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_learned_transforms_are_shown(page, tmp_path):
    X = np.random.default_rng(0).gamma(2.0, size=(12, 5))
    fitted = QMF(2, max_iter=3, random_state=0).fit(X)
    learned = Page(write_report(fitted, tmp_path / "transforms.html", X=X).read_text())
    assert "Transforms" in learned.texts
    assert len(learned.images) == 3
    assert "Transforms" not in page.texts  # of a model that has none
    assert len(page.images) == 2
