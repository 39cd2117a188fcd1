"""BBC News as a tensor of articles x words x words.

The paper leaves open which 100 words are used and what stands on the diagonal. Here the words
come from development articles, which no evaluation sees, so that nothing of a test article is
in the choice of the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import polars as pl
from scipy.sparse import coo_array, csr_array
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, TfidfTransformer
from sklearn.model_selection import StratifiedKFold, train_test_split

from experiments.data import data_file
from polyad.transport import presence_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

N_WORDS = 100
N_ARTICLES = 400
N_FOLDS = 5
# The articles that settle everything that the paper leaves open, and the seed that draws them.
N_DEVELOPMENT = 700
POOL_SEED = 20210202
# Words in fewer development articles than this say more about one story than about a subject.
_MIN_ARTICLES = 10
_TOKEN = re.compile(r"[a-z]{3,}")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"']?\s+|\n+")


@dataclass(frozen=True)
class Construction:
    """What the paper leaves open about the tensor.

    Attributes
    ----------
    words : {'tfidf', 'frequency'}
        The words of the largest sum of tf-idf weights, or those in the most articles.
    diagonal : bool
        Whether a word occurs together with itself: the diagonal is then the word's count.
    n_sentences : int, optional
        Use only so many sentences of each article, from its beginning.
    """

    words: str = "tfidf"
    diagonal: bool = False
    n_sentences: int | None = None


@cache
def load_articles() -> pd.DataFrame:
    """Return the articles, each once: no text and no title occurs twice."""
    # By polars, which needs no further package to read parquet files.
    table = pd.DataFrame(
        pl.read_parquet(data_file("bbc/bbc_news.parquet")).to_dict(as_series=False)
    )
    title = table["title"].str.lower().str.strip()
    once = ~title.duplicated() & ~table["text"].str.strip().duplicated()
    return table[once].reset_index(drop=True)


@cache
def sentences() -> list[list[list[str]]]:
    """Return the words of each sentence of each article."""
    table = load_articles()
    texts = table["title"] + ".\n" + table["text"]
    return [
        [_words(sentence) for sentence in _SENTENCE_END.split(text) if sentence.strip()]
        for text in texts
    ]


def _words(sentence: str) -> list[str]:
    return [w for w in _TOKEN.findall(sentence.lower()) if w not in ENGLISH_STOP_WORDS]


@cache
def pools() -> tuple[np.ndarray, np.ndarray]:
    """Return the development articles and those of the evaluation."""
    table = load_articles()
    development, evaluation = train_test_split(
        np.arange(len(table)),
        train_size=N_DEVELOPMENT,
        stratify=table["category"],
        random_state=POOL_SEED,
    )
    return np.sort(development), np.sort(evaluation)


def draw_sample(pool: str, sample: int) -> np.ndarray:
    """Return 400 articles of a pool, in the proportions of the classes."""
    articles = pools()[pool == "evaluation"]
    labels = load_articles()["category"].to_numpy()[articles]
    drawn, _ = train_test_split(
        articles, train_size=N_ARTICLES, stratify=labels, random_state=sample
    )
    return np.sort(drawn)


def split(articles: np.ndarray, sample: int, fold: int) -> list[np.ndarray]:
    """Return the training, validation and test articles of a fold, 3:1:1."""
    labels = load_articles()["category"].to_numpy()[articles]
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=sample).split(articles, labels)
    parts = [test for _, test in folds]
    test, validation = parts[fold], parts[(fold + 1) % N_FOLDS]
    train = np.setdiff1d(np.arange(len(articles)), np.concatenate([test, validation]))
    return [articles[np.sort(part)] for part in (train, validation, test)]


def classes(articles: np.ndarray) -> np.ndarray:
    """Return the class of each article."""
    return load_articles()["category"].to_numpy(dtype=str)[articles]


@cache
def vocabulary(how: str) -> tuple[str, ...]:
    """Return the 100 words, chosen on the development articles."""
    articles = pools()[0]
    texts = [[w for sentence in sentences()[i] for w in sentence] for i in articles]
    known = sorted({w for text in texts for w in text})
    counts = count_matrix(texts, known)
    in_articles = np.asarray((counts > 0).sum(axis=0)).ravel()
    if how == "tfidf":
        score = np.asarray(TfidfTransformer().fit_transform(counts).sum(axis=0)).ravel()
    elif how == "frequency":
        score = in_articles.astype(float)
    else:
        message = f"The words are chosen by 'tfidf' or 'frequency', not by {how!r}."
        raise ValueError(message)
    score[in_articles < _MIN_ARTICLES] = 0.0
    best = np.argsort(-score, kind="stable")[:N_WORDS]
    return tuple(sorted(known[k] for k in best))


def count_matrix(texts: Sequence[Sequence[str]], words: Sequence[str]) -> csr_array:
    """Return how often each word occurs in each text."""
    number = {word: k for k, word in enumerate(words)}
    rows, columns = [], []
    for row, text in enumerate(texts):
        found = [number[w] for w in text if w in number]
        columns += found
        rows += [row] * len(found)
    shape = (len(texts), len(words))
    return csr_array(coo_array((np.ones(len(rows)), (rows, columns)), shape=shape))


@cache
def _all_pairs(construction: Construction) -> tuple[np.ndarray, np.ndarray]:
    """Return (article, word, word) and the number of sentences, for all articles."""
    words = vocabulary(construction.words)
    coords, values = [], []
    for article, text in enumerate(sentences()):
        used = text[: construction.n_sentences]
        counts = count_matrix(used, words)
        if construction.diagonal:
            together = (counts.T @ counts).toarray()
        else:
            present = (counts > 0).astype(float)
            together = (present.T @ present).toarray()
            np.fill_diagonal(together, 0.0)
        j, k = np.nonzero(together)
        coords.append(np.stack([np.full(len(j), article), j, k]))
        values.append(together[j, k])
    return np.concatenate(coords, axis=1), np.concatenate(values)


def make_tensor(articles: np.ndarray, construction: Construction) -> coo_array:
    """Return the tensor of some articles, in the order given."""
    coords, values = _all_pairs(construction)
    position = np.full(len(load_articles()), -1)
    position[articles] = np.arange(len(articles))
    own = position[coords[0]] >= 0
    new = (position[coords[0][own]], coords[1][own], coords[2][own])
    return coo_array((values[own], new), shape=(len(articles), N_WORDS, N_WORDS))


def word_costs(articles: np.ndarray, construction: Construction) -> np.ndarray:
    """Return one minus the cosine between the sets of articles that two words occur in."""
    texts = [[w for sentence in sentences()[i] for w in sentence] for i in articles]
    return presence_cost(count_matrix(texts, vocabulary(construction.words)).tocoo(), mode=1)
