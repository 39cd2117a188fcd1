"""The shape of the house: who may import whom, what no module does, and what is public."""

import ast
import importlib
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import polyad
from tests import forks

SOURCE = Path(polyad.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

GROUND = {"core", "exceptions", "_version"}
FLOORS = {"tensor", "transport", "losses", "fitting", "data"}
SKELETON = {"estimators"}
ROOMS = {"augmented", "cp", "crowd", "dictionary", "membership", "quantile", "soft", "wasserstein"}
TOP = {"datasets", "io", "metrics", "report", "selection"}
ROOT = "polyad"

# Each part of the house, and the parts that it may use besides itself and the ground.
MAY_USE = {
    **{part: set() for part in GROUND},
    **{floor: set() for floor in FLOORS},
    "data": {"tensor"},
    "transport": {"data"},
    "losses": {"data"},
    "estimators": FLOORS,
    **{room: FLOORS | SKELETON for room in ROOMS},
    "augmented": FLOORS | SKELETON | {"cp"},
    "wasserstein": FLOORS | SKELETON | {"cp"},
    "membership": FLOORS | SKELETON | {"cp"},
    "crowd": FLOORS | SKELETON | {"membership"},
    "quantile": FLOORS | SKELETON | {"soft"},
    # What is around the models knows none of them: each says itself what it has to show.
    **{part: FLOORS | SKELETON for part in TOP},
    "selection": FLOORS | SKELETON | {"metrics"},
    # Model files name their class: the root has the list of estimators.
    "io": FLOORS | SKELETON | {ROOT},
    ROOT: GROUND | FLOORS | SKELETON | ROOMS | TOP,
    "cli": {ROOT},
    "__main__": {"cli"},
}


def name_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module):
    """Return the part of the house that ``polyad.x.y`` is in."""
    return module.split(".")[1] if "." in module else ROOT


@cache
def modules():
    """Return the tree of each module by its name."""
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


@cache
def nodes(tree):
    """Return every node of a tree, which most tests look through."""
    return list(ast.walk(tree))


def imports(module, tree):
    """Return every module that is imported anywhere in a tree, also for type checking."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def test_every_part_has_its_rules():
    assert {part_of(module) for module in modules()} == set(MAY_USE)


def test_imports_go_down_only():
    for module, tree in modules().items():
        own = part_of(module)
        allowed = MAY_USE[own] | {own} | GROUND
        for target in imports(module, tree):
            package = target.partition(".")[0]
            assert package != "tests", f"{module} imports the tests"
            if package == "polyad":
                assert part_of(target) in allowed, f"{module} imports {target}"


def test_the_rules_see_a_forbidden_import():
    """The reader of imports finds them inside functions and type checking blocks too."""
    text = """
if TYPE_CHECKING:
    from polyad.cp import CP
def function():
    import polyad.io.model
    from polyad import report
"""
    found = {part_of(target) for target in imports("polyad.tensor.x", ast.parse(text))}
    assert found == {"cp", "io", "report"}


def packages_of(module, tree):
    return {target.partition(".")[0] for target in imports(module, tree)}


COMPATIBLE = "polyad.core.sklearn_compat"


def test_only_the_surface_knows_scikit_learn():
    knowing = {
        module for module, tree in modules().items() if "sklearn" in packages_of(module, tree)
    }
    surface = {
        module
        for module in modules()
        if part_of(module) in SKELETON | TOP or module.endswith((".estimator", ".family"))
    }
    assert knowing <= surface | {COMPATIBLE}


def private_names(tree):
    """Return what a tree takes of scikit-learn and joblib that they do not promise to keep."""
    for node in nodes(tree):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found = [dotted(node)]
        for name in found:
            package, *inner = name.split(".")
            is_private = any(part.startswith("_") and part != "__version__" for part in inner)
            if package in ("sklearn", "joblib") and (is_private or "externals" in inner):
                yield name


def test_private_names_of_scikit_learn_and_joblib_are_in_one_module():
    found = {module: list(private_names(tree)) for module, tree in modules().items()}
    assert [module for module, names in found.items() if names] == [COMPATIBLE]


@pytest.mark.parametrize(
    "text",
    [
        *("from sklearn.base import _fit_context", "import sklearn.utils._set_output"),
        *("from joblib.externals import loky", "joblib._memmapping_reducer.remove(x)"),
    ],
)
def test_the_rules_see_a_private_name(text):
    assert list(private_names(ast.parse(text)))


OPTIONAL = {
    *("torch", "jax", "matplotlib", "tensorly", "pyttb", "sparse", "xarray", "polars", "dask"),
    *("zarr", "anndata", "h5py", "jinja2"),
}


# A front for an optional package is imported by those who have the package.
FRONTS = {"polyad.soft.torch": "torch", "polyad.soft.jax": "jax"}


def test_optional_packages_are_imported_where_they_are_used():
    for module, tree in modules().items():
        top_level = ast.Module([node for node in tree.body if not is_block(node)], [])
        assert not packages_of(module, top_level) & (OPTIONAL - {FRONTS.get(module)}), module


def test_no_module_needs_a_front():
    for module, tree in modules().items():
        assert not set(imports(module, tree)) & set(FRONTS), module


def is_block(node):
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.If)


# What no module does.

FORBIDDEN_CALLS = {"print", "eval", "exec", "compile", "breakpoint", "input", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "random"}
GENERATORS = {"RandomState", "Generator", "default_rng", "SeedSequence", "PCG64"}


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def offences(tree):
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in FORBIDDEN_CALLS or name in ("joblib.load", "joblib.dump", "os.system"):
                yield node.lineno, name
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if keyword.arg == "allow_pickle" and value is not False:
                    yield node.lineno, "allow_pickle"
        if isinstance(node, ast.Attribute):
            module, _, function = dotted(node).rpartition(".")
            if module in ("np.random", "numpy.random") and function not in GENERATORS:
                yield node.lineno, f"np.random.{function}"
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert"
        if isinstance(node, ast.Global):
            yield node.lineno, "global"


def test_what_no_module_does():
    for module, tree in modules().items():
        assert list(offences(tree)) == [], module
        assert not packages_of(module, tree) & FORBIDDEN_MODULES, module


@pytest.mark.parametrize(
    "text",
    [
        *("print(1)", "eval('1')", "joblib.load(f)", "np.random.seed(0)", "np.random.rand(3)"),
        *("np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=flag)", "assert 1"),
    ],
)
def test_the_rules_see_an_offence(text):
    assert len(list(offences(ast.parse(text)))) == 1


def test_files_stay_readable():
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert {name for name, length in lengths.items() if length > 800} == set()


# What is public.

PUBLIC = {
    "polyad": [
        *(
            "AugmentedCP",
            "augmented",
            "CP",
            "Checkpoint",
            "DawidSkene",
            "GeneralizedCP",
            "History",
            "KruskalTensor",
        ),
        *("LabelledTensor", "MajorityVote", "MixedMembership", "NonnegativeCP", "PoissonCP"),
        *("PolyadError", "QMF", "QMFQ", "SimilarityCP", "crowd", "membership"),
        *("WassersteinCPDictionary", "WassersteinDictionary", "dictionary"),
        *(
            "Status",
            "StochasticCP",
            "SupervisedCP",
            "WassersteinCP",
            "__version__",
            "cp",
            "data",
            "datasets",
        ),
        *("exceptions", "factor_match_score", "fitting", "io", "load", "losses", "metrics"),
        *("quantile", "report", "selection", "soft", "tensor", "transport", "wasserstein"),
        *("wasserstein_barycenter", "wasserstein_distance"),
    ],
    "polyad.augmented": ["AugmentedCP"],
    "polyad.augmented.signals": [
        *("BandPass", "ChannelDropout", "Compose", "Jitter", "OneOf", "Recordings", "Rotation"),
        *("STFT", "Scaling", "TimeShift"),
    ],
    "polyad.cp": [
        *("CP", "GeneralizedCP", "NonnegativeCP", "PoissonCP", "SimilarityCP", "StochasticCP"),
        "SupervisedCP",
    ],
    "polyad.cp.generalized": ["GeneralizedCP"],
    "polyad.cp.nonnegative": ["NonnegativeCP"],
    "polyad.cp.poisson": ["PoissonCP"],
    "polyad.cp.similarity": ["SimilarityCP"],
    "polyad.cp.stochastic": ["StochasticCP"],
    "polyad.cp.supervised": ["SupervisedCP"],
    "polyad.cli": [],
    "polyad.core": [],
    "polyad.crowd": ["DawidSkene", "MajorityVote"],
    "polyad.data": ["LabelledTensor"],
    "polyad.estimators": [],
    "polyad.datasets": ["add_noise", "load_digits", "make_low_rank", "make_sparse"],
    "polyad.dictionary": [
        *("WassersteinCPDictionary", "WassersteinDictionary", "wasserstein_barycenter"),
    ],
    "polyad.fitting": [
        *("BlockProblem", "BlockSolver", "BlockState", "minimize_blocks"),
        *(
            "Checkpoint",
            "FitOptions",
            "FitResult",
            "History",
            "Iteration",
            "Moves",
            "Resumable",
            "Solver",
            "Status",
        ),
        "fit_best",
    ],
    "polyad.io": [
        *("from_pyttb", "from_sparse", "from_tensorly", "from_xarray", "load", "read_anndata"),
        *("read_tns", "to_pyttb", "to_sparse", "to_tensorly", "tensor_from_events", "to_xarray"),
        *("write_anndata", "write_tns"),
    ],
    "polyad.losses": [
        *("BernoulliLogitLoss", "BernoulliOddsLoss", "BetaDivergenceLoss", "CustomLoss"),
        *("GammaLoss", "GaussianLoss", "HuberLoss", "Loss", "NegativeBinomialLoss"),
        *("PoissonLogLoss", "PoissonLoss", "RayleighLoss"),
    ],
    "polyad.membership": ["MixedMembership", "moments"],
    "polyad.membership.alternatives": [
        *("category_probabilities", "hals", "joint_diagonalization", "meld", "tensor_power"),
    ],
    "polyad.metrics": [
        *("FeatureEvaluation", "core_consistency", "evaluate_features", "explained_variation"),
        *("factor_match_score", "poisson_deviance", "relative_error"),
    ],
    "polyad.quantile": ["MeanQMF", "QMF", "QMFQ"],
    "polyad.quantile.mean": ["MeanQMF"],
    "polyad.quantile.projected": ["QMFQ"],
    "polyad.report": ["plot_components", "plot_transforms", "write_report"],
    "polyad.selection": ["RankSelection", "select_rank"],
    "polyad.soft": [
        *("Cost", "SoftGradients", "quantile_normalize", "quantize", "soft_quantile"),
        *("soft_rank", "soft_sort", "soft_sort_with", "soft_topk_mask", "vjp"),
    ],
    "polyad.tensor": [
        *("DenseTensor", "KruskalTensor", "Matching", "SparseTensor"),
        *("canonicalize_components", "factor_match_score", "fold", "khatri_rao"),
        *("kruskal_to_dense", "match_components", "mttkrp", "unfold"),
    ],
    "polyad.wasserstein": ["WassersteinCP"],
    "polyad.transport.fibres": ["FibreSolution", "FibreTransport", "SparseFibres"],
    "polyad.transport.rows": [
        *("Cost", "Gradients", "LongTransport", "RowTransport", "SinkhornPlan", "SolvedPlan"),
        "is_long",
    ],
    "polyad.transport": [
        *("FibreSolution", "FibreTransport", "SinkhornResult", "SparseFibres", "cosine_cost"),
        *("grid_cost", "one_identity_cost", "presence_cost", "random_cost", "sinkhorn"),
        *("ConvolutionGeometry", "Geometry", "MatrixGeometry", "SeparableGeometry"),
        *("grid_geometry", "graph_cost", "embedding_cost", "mixed_cost", "prefix_cost"),
        "taxonomy_cost",
        *("tfidf_cost", "validate_cost", "wasserstein_distance"),
    ],
}


def packages():
    return {name_of(path) for path in FILES if path.name == "__init__.py"}


def test_the_public_names_are_these():
    """A change here is a change for users: it belongs into CHANGELOG.md."""
    found = {
        name: sorted(getattr(importlib.import_module(name), "__all__", [])) for name in packages()
    }
    assert found == {name: sorted(names) for name, names in PUBLIC.items()}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_resolves_and_is_documented(module):
    for name in PUBLIC[module]:
        value = getattr(importlib.import_module(module), name)
        if name == "__version__":
            assert isinstance(value, str)
            continue
        assert inspect.getdoc(value), name
        for inner, member in vars(value).items() if inspect.isclass(value) else ():
            if not inner.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(value, inner)), f"{name}.{inner}"


def test_every_module_and_public_definition_has_a_docstring():
    for module, tree in modules().items():
        assert ast.get_docstring(tree), module
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module}.{node.name}"


def test_dir_shows_the_public_names():
    assert dir(polyad) == sorted(polyad.__all__)


def test_an_unknown_attribute_is_named():
    with pytest.raises(AttributeError, match="module 'polyad' has no attribute 'NMF'"):
        polyad.NMF  # noqa: B018
    with pytest.raises(ImportError, match="NMF"):
        from polyad import NMF  # noqa: F401


def test_star_import_gives_the_public_names():
    names = {}
    exec("from polyad import *", names)
    assert set(names) >= set(polyad.__all__)


# Importing.

PARTS = {"part", "ordered_part", "owning_part"}


def compiled(tree, decorators):
    """Return the functions of a module that have one of some decorators, by name."""
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(dotted(decorator) in decorators for decorator in node.decorator_list)
    }


@cache
def parts():
    return {(module, name) for module, tree in modules().items() for name in compiled(tree, PARTS)}


def interpreted_parts(module, tree):
    """Yield the parts of kernels that a module names outside of kernels and parts."""
    known = {name: (module, name) for name in compiled(tree, PARTS)}
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            known |= {alias.name: (node.module, alias.name) for alias in node.names}
    inside = {
        id(node)
        for function in compiled(tree, {"kernel", *PARTS}).values()
        for node in ast.walk(function)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Name) and id(node) not in inside and known.get(node.id) in parts():
            yield node.id


def test_parts_of_kernels_are_called_by_kernels():
    """Python would run them as they are written, a hundred times slower, without a word."""
    for module, tree in modules().items():
        assert list(interpreted_parts(module, tree)) == [], module


def test_a_part_that_python_calls_is_seen():
    module, name = min(parts())
    text = f"from {module} import {name}\n@kernel\ndef fine(x):\n    {name}(x)\n"
    assert list(interpreted_parts("polyad.other", ast.parse(text))) == []
    text += f"def slow(x):\n    {name}(x)\n"
    assert list(interpreted_parts("polyad.other", ast.parse(text))) == [name]


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = (
    "numba pandas sklearn torch jax matplotlib scipy numpy xarray polars sparse pyttb tensorly "
    "anndata"
)


def test_importing_polyad_is_light():
    code = f"""
import sys, polyad
polyad.__version__, dir(polyad)
print([name for name in {HEAVY.split()} if name in sys.modules])
import polyad.data.labels
print("pandas" in sys.modules)
"""
    assert run(code).split() == ["[]", "False"]


def test_making_an_estimator_needs_no_optional_package():
    """Nor does a fit: each optional package is as if it were not installed."""
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(OPTIONAL)}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for name in [*sys.modules]:
    if name.partition(".")[0] in {sorted({"polyad", *OPTIONAL})}:
        del sys.modules[name]
import numpy as np, polyad
X = np.random.default_rng(0).random((6, 5, 4))
model = polyad.CP(2, random_state=0).fit(X)
polyad.io.read_tns, polyad.report.write_report, polyad.datasets.load_digits
print(model.transform(X).shape, polyad.LabelledTensor(X, modes=list("abc")).shape)
"""
    done = forks.run(code)
    assert done.stdout.strip() == "(6, 2) (6, 5, 4)", done.stderr


def needs_of(trees):
    """Return what each module imports when it is imported."""
    return {name: list(imports_at_once(tree.body)) for name, tree in trees.items()}


def import_first(module, needs):
    """Go through the imports that importing a module runs; fail where a name is not there yet."""
    begun, done = set(), set()

    def run_module(name):
        for end in range(1, name.count(".") + 2):  # its packages before it
            part = ".".join(name.split(".")[:end])
            if part in needs and part not in begun:
                begun.add(part)
                for target, wanted in needs[part]:
                    take(part, target, wanted)
                done.add(part)

    def take(importer, target, wanted):
        run_module(target)
        if f"{target}.{wanted}" in needs:
            run_module(f"{target}.{wanted}")
        elif target in needs and wanted is not None:
            assert target in done, f"{importer} needs {target}.{wanted} before it is there"

    run_module(module)


def imports_at_once(statements):
    """Yield what statements outside functions import: a module, and a name of it or None."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports_at_once(node.orelse)
        elif not isinstance(node, ast.FunctionDef):
            yield from imports_at_once(ast.iter_child_nodes(node))


def test_every_module_can_be_imported_first():
    """No module relies on another having been imported before: there are no cycles."""
    needs = needs_of(modules())
    for module in modules():
        import_first(module, needs)


def test_a_cycle_of_imports_is_seen():
    texts = {"p": "", "p.a": "from p.b import f\ng = 1", "p.b": "from p.c import h", "p.c": ""}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    import_first("p.a", needs_of(trees))
    trees["p.c"] = ast.parse("from p.a import g\nh = 2")
    with pytest.raises(AssertionError, match=r"p.c needs p.a.g"):
        import_first("p.a", needs_of(trees))
    trees["p.c"] = ast.parse("if TYPE_CHECKING:\n    from p.a import g\ndef h():\n    import p.a")
    import_first("p.a", needs_of(trees))
