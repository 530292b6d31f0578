"""DataFrames in and out: the answers' columns beside the rows' own, by the little of pandas and polars that is used."""

from types import SimpleNamespace

import pytest

from edgepeft.common.errors import DataError, UnknownName
from edgepeft.runtime.inputs import is_frame
from edgepeft.runtime.prediction import answered_frame
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks.classification import Classification


class Polars:
    """Its constructor, ``to_dicts`` and ``hstack``."""

    def __init__(self, columns):
        self.data = {name: list(values) for name, values in columns.items()}

    @property
    def columns(self):
        return list(self.data)

    def to_dicts(self):
        return [dict(zip(self.data, row, strict=True)) for row in zip(*self.data.values(), strict=True)]

    def hstack(self, other):
        assert not {*self.data} & {*other.data}, "polars refuses a name twice"
        return Polars({**self.data, **other.data})


class Pandas(Polars):
    """``to_dict``, ``iterrows`` and ``assign``, which replaces a column of that name."""

    to_dicts = property(lambda self: (_ for _ in ()).throw(AttributeError))
    iterrows = None

    def to_dict(self, orient):
        assert orient == "records"
        return Polars.to_dicts(self)

    def assign(self, **more):
        return Pandas({**self.data, **more})


class Fake:
    """A runtime whose task says "good" of every text, and doubts the second."""

    bundle = SimpleNamespace(entry=lambda _: SimpleNamespace(task_kind=Classification(("bad", "good")), source=None))

    def predict_all(self, tasks, texts):
        self.texts = texts
        scores = {"bad": 0.25, "good": 0.75}
        answers = [Prediction("mood", "good", 0.75, scores, (0.0, 1.0), unsure=i == 1) for i, _ in enumerate(texts)]
        return {tasks[0]: answers}


@pytest.fixture(params=[Polars, Pandas], ids=["polars", "pandas"])
def frame_of(request):
    return request.param


def test_label_probability_and_doubt_stand_beside_the_rows_own_columns(frame_of):
    given, runtime = frame_of({"text": ["w7", "w8"], "id": [4, 5]}), Fake()
    found = answered_frame(runtime, "mood", given)
    assert runtime.texts == [("w7", None), ("w8", None)]
    told = {"label": ["good", "good"], "probability": [0.75, 0.75], "unsure": [False, True]}
    assert isinstance(found, frame_of) and found.data == {"text": ["w7", "w8"], "id": [4, 5], **told}
    assert given.columns == ["text", "id"]


def test_a_label_that_the_rows_have_is_kept(frame_of):
    found = answered_frame(Fake(), "mood", frame_of({"text": ["w7"], "label": ["bad"]}))
    assert found.data["label"] == ["bad"] and found.data["mood.label"] == ["good"]


def test_rows_that_cannot_be_read_are_named(frame_of):
    with pytest.raises(DataError, match=r"rows:2: sentence1 must be a text"):
        answered_frame(Fake(), "mood", frame_of({"text": ["w7", None]}))


class NAType:
    """pandas.NA of its nullable types: as its documentation has it, no truth."""

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class NaTType:
    """pandas.NaT."""


@pytest.mark.parametrize("missing", [None, float("nan"), NAType(), NaTType()], ids=["None", "NaN", "NA", "NaT"])
def test_what_pandas_has_for_nothing_is_nothing(missing):
    frame = Pandas({"sentence1": ["w7", "w8"], "sentence2": [missing, missing], "id": [missing, 5]})
    runtime = Fake()
    answered_frame(runtime, "mood", frame)
    assert runtime.texts == [("w7", None), ("w8", None)]
    with pytest.raises(DataError, match=r"rows:1: sentence1 must be a text; found null"):
        answered_frame(runtime, "mood", Pandas({"sentence1": [missing]}))


def test_a_runtime_answers_a_frame_as_it_answers_its_texts(exported, frame_of):
    with Runtime(exported) as runtime:
        plain = runtime.predict("mood", ["w7 w8", "w9"])
        found = runtime.predict("mood", frame_of({"text": ["w7 w8", "w9"]}))
        assert found.data["label"] == [answer.label for answer in plain]
        assert found.data["probability"] == [answer.score for answer in plain]
        value = runtime.predict("score", frame_of({"text": ["w9"]}))
        assert value.data["value"] == [runtime.predict("score", ["w9"])[0].score]


def test_texts_are_no_frame():
    assert not any(map(is_frame, ["w7", ["w7"], ("w7", "w8"), {"sentence1": "w7"}, iter(["w7"])]))


class Series:
    """pandas' one: values one after another, found by the labels of its index."""

    iloc = None

    def __init__(self, index, values):
        self.index, self.values = index, values

    def keys(self):
        return self.index

    def to_dict(self):
        return dict(zip(self.index, self.values, strict=True))

    def __iter__(self):
        return iter(self.values)


def test_a_frame_is_its_rows_and_a_series_its_values_wherever_texts_are_asked(exported, frame_of):
    """A frame's own iteration gives the names of its columns, and an index of a Series is a label."""
    texts, tasks = ["w7 w8", "w9"], ["mood", "score"]
    names, row = Series([1, 0], ["mood", "score"]), Series(["text", "label"], ["w7 w8", "bad"])
    melted = Series(["text", "text"], texts)  # of one column each, as pandas' melt has it
    pair = Series(["premise", "hypothesis", "label"], ["w7", "w9 w9", float("nan")])
    half = Series(["sentence1", "sentence2"], ["w7 w8", float("nan")])
    with Runtime(exported) as runtime:
        for given in (frame_of({"text": texts, "label": ["bad", "good"]}), Series([1, 0], texts), melted):
            assert runtime.predict_all(tasks, given) == runtime.predict_all(tasks, texts)
            assert runtime.predict_mixed(names, given) == runtime.predict_mixed(tasks, texts)
        assert runtime.predict("mood", row) == runtime.predict("mood", half) == runtime.predict("mood", texts[0])
        assert runtime.predict("pair", pair) == runtime.predict("pair", [("w7", "w9 w9")])


def test_several_tasks_at_once_are_no_name_of_one(exported):
    with Runtime(exported) as runtime, pytest.raises(UnknownName, match=r"no task .* called \['mood'\]"):
        runtime.predict(["mood"], "w7")
