"""What requests and answers look like; the OpenAPI document is made from these."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

from edgepeft.common.task_name import TASK_NAME
from edgepeft.data.columns import CANDIDATES, SENTENCES
from edgepeft.data.words import Words

TaskName = Annotated[str, Field(pattern=TASK_NAME, examples=["mood"])]


class Asked(BaseModel):
    """Base of what requests hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")  # a misspelt key is an error, not a default


T = TypeVar("T")
_MAX_COLUMNS = 1000
_MAX_OF_LABEL = 5000  # names, spans and their fields: a text has 20,000 characters at most


class _FirstMistake(FailFast):
    """Has a list refused at its first mistake: one of a hundred thousand would take a minute else."""

    __hash__ = object.__hash__  # as unions of types want it


def _few(columns: Any) -> Any:
    if isinstance(columns, dict) and len(columns) > _MAX_COLUMNS:
        raise ValueError(f"give {_MAX_COLUMNS:,} columns at most, found {len(columns):,}")
    return columns


def _short(label: Any) -> Any:
    """Counted before it is tried as each kind of label: thousands of mistakes take seconds in all."""
    inner = label.values() if isinstance(label, dict) else label if isinstance(label, list) else ()
    parts = len(inner) + sum(len(each) for each in inner if isinstance(each, list | dict))
    if parts > _MAX_OF_LABEL:
        raise ValueError(f"give {_MAX_OF_LABEL:,} names, spans and fields at most, found {parts:,}")
    return label


Listed = Annotated[list[T], _FirstMistake()]
Fields = Annotated[dict[str, str | int | float | Listed[str]], BeforeValidator(_few)]
Candidates = Listed[str]
WordList = Annotated[Listed[Annotated[str, Field(pattern=r"\S")]], Field(min_length=1)]
Given = str | tuple[str, str | None] | Fields


def _one_of(**kinds: str) -> dict[str, Any]:
    """The JSON schema of ``TextRow._one_of_them``: one of these, and what stands beside a text beside nothing else."""
    null, forms = {"type": "null"}, []
    for form, kind in kinds.items():
        beside = {} if form == "text" else {"second": null, "candidates": null}
        forms.append({"required": [form], "properties": {**dict.fromkeys(kinds, null), **beside, form: {"type": kind}}})
    return {"oneOf": forms}


class TextRow(Asked):
    """A text, or a pair of texts for a task that was trained on pairs, or a text with ``candidates`` for a task that
    picks one; or a text's ``words``; or ``fields``, the columns by name that a task posed as text reads."""

    model_config = ConfigDict(json_schema_extra=_one_of(text="string", words="array", fields="object"))
    text: str | None = None
    second: str | None = None
    candidates: Candidates | None = None
    words: WordList | None = None
    fields: Fields | None = None

    instead: ClassVar[tuple[str, ...]] = ("words", "fields")  # of a text

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        """See that there is one of the text and what may stand instead, and nothing of a text beside another."""
        beside = self.second is not None or self.candidates is not None
        given = [getattr(self, name) for name in ("text", *self.instead)]
        if given.count(None) != len(self.instead) or (self.text is None and beside):
            raise ValueError(f"give text (and second for a pair, or candidates), or {', or '.join(self.instead)}")
        return self

    @property
    def given(self) -> Given:
        """What a task reads."""
        if self.fields is not None:
            return self.fields
        if self.candidates is None:
            return (self.text or "", self.second) if self.words is None else (Words(self.words), None)
        pair: Fields = {} if self.second is None else {SENTENCES.names[1]: self.second}
        return {SENTENCES.names[0]: self.text or "", CANDIDATES: self.candidates, **pair}


def _texts(rows: Sequence[str | TextRow]) -> list[Given]:
    return [row if isinstance(row, str) else row.given for row in rows]


class PredictRequest(TextRow):
    """Either one text (with ``second``: a pair; with ``candidates``: of which one is picked), or its ``words``, or the
    ``fields`` of one row, or ``rows`` of any of these."""

    model_config = ConfigDict(json_schema_extra=_one_of(text="string", words="array", fields="object", rows="array"))
    text: str | None = Field(default=None, examples=["We laughed all evening."])
    candidates: Candidates | None = Field(default=None, description="Of a task that picks one of them.")
    words: WordList | None = Field(default=None, description="Of a text, as a task that tags words takes them.")
    fields: Fields | None = Field(default=None, description="Of a task that is posed as text: its columns by name.")
    rows: Listed[str | TextRow] | None = Field(default=None, min_length=1)

    instead = ("words", "fields", "rows")

    @property
    def texts(self) -> list[Given]:
        """What to read, in order."""
        return [self.given] if self.rows is None else _texts(self.rows)


class MixedRow(TextRow):
    """A row with its task; without one it gets the backbone's embedding."""

    task: str | None = Field(default=None, examples=["mood"])  # of any form: a name of no task is its row's error


class MixedRequest(Asked):
    """Rows of any tasks, answered in one batch; a text alone is a row without a task."""

    rows: Listed[MixedRow | str] = Field(min_length=1)

    @property
    def named(self) -> list[str | None]:
        """Each row's task."""
        return [None if isinstance(row, str) else row.task for row in self.rows]

    @property
    def texts(self) -> list[Given]:
        """What to read, in order."""
        return _texts(self.rows)


class SpanGiven(Asked):
    """What stands in a text from ``start`` to before ``end``, in Unicode characters (code points)."""

    start: int = Field(ge=0)
    end: int = Field(ge=1)
    label: str


class AnswersGiven(Asked):
    """What answers a question, and where each text starts in the passage; empty lists where nothing does."""

    text: Listed[str]
    answer_start: Listed[int]


class TuneRow(TextRow):
    """A row to learn from; ``label`` is a number, a list of names, a list of spans or the answers that stand in a
    passage where the task's answers are."""

    label: Annotated[str | int | float | Listed[str] | Listed[SpanGiven] | AnswersGiven, BeforeValidator(_short)]

    @property
    def in_file(self) -> dict[str, Any]:
        """The row as a file has it."""
        given: dict[str, Any] = dict(zip(SENTENCES.names, (self.text, self.second), strict=False))
        given |= {"words": self.words, CANDIDATES: self.candidates, **(self.fields or {})}
        return {name: value for name, value in given.items() if value is not None} | self.model_dump(include={"label"})


class TuneRequest(Asked):
    """What to fine-tune on; the options are those of ``edgepeft tune``."""

    rows: Listed[TuneRow] = Field(min_length=1)
    template: TaskName | None = Field(default=None, description="Start a new task of this name from a template.")
    steps: int | None = Field(default=None, ge=1, le=100_000)
    epochs: int | None = Field(default=None, ge=1, le=1000)
    lr: float | None = Field(default=None, gt=0, le=10)
    head_lr: float | None = Field(default=None, gt=0, le=10)
    batch_size: int | None = Field(default=None, ge=1, le=1024)
    seed: int = Field(default=0, ge=0, lt=2**32)
    coverage: float | None = Field(default=None, gt=0, lt=1)
    risk: float | None = Field(default=None, gt=0, lt=1)


class SpanFound(BaseModel):
    """``text`` stands from ``start`` to before ``end``, in Unicode characters (code points), an emoji being one."""

    start: int
    end: int
    label: str
    text: str
    score: float


class PredictionBody(BaseModel):
    """A label with its probability and those of all labels; ``value`` where the task is a number, ``text`` where it
    writes one, which has ``ended`` unless it is cut at the largest number of tokens.

    ``note`` is there where the text is of another kind than those that the task was trained on.
    """

    task: str
    label: str | None = None
    labels: list[str] | None = Field(default=None, description="All that hold, where several may.")
    index: int | None = Field(default=None, description="Of the candidate that is picked, from 0.")
    spans: list[SpanFound] | None = Field(default=None, description="What stands in the text, in order.")
    answered: bool | None = Field(default=None, description="Whether the passage has an answer, which is text then.")
    start: int | None = Field(default=None, description="Of the answer in the passage, in Unicode characters.")
    end: int | None = Field(default=None, description="Past the answer's last character.")
    unread: int | None = Field(default=None, description="Where the text was cut, if it was: past that, no span is.")
    score: float | None = None
    scores: dict[str, float] | None = None
    value: float | None = None
    vector: list[float] | None = Field(default=None, description="Where the task is an embedding.")
    cosine: float | None = Field(default=None, description="Of a pair's vectors.")
    expected: float | None = Field(default=None, description="The mean of labels that are numbers.")
    unsure: bool | None = Field(default=None, description="There where the task promises a coverage or a risk.")
    text: str | None = None
    ended: bool | None = None
    note: str | None = None


class Predictions(BaseModel):
    """One prediction for each text, in order."""

    predictions: list[PredictionBody]


class Fault(BaseModel):
    """What went wrong: a word for programs, a sentence for people."""

    code: str
    message: str


class Answer(BaseModel):
    """One of the three."""

    prediction: PredictionBody | None = None
    embedding: list[float] | None = None
    error: Fault | None = None


class Answers(BaseModel):
    """One answer for each row, in order; a row whose task is not there has an ``error``, the others are answered."""

    answers: list[Answer]


class Problem(BaseModel):
    """Any answer that is not a success."""

    error: Fault


class Task(BaseModel):
    """One task of the bundle."""

    name: str
    method: str
    kind: str = Field(description="The kind of task: classification, regression, text, ...")
    labels: list[str] | None = Field(description="None where the task is a number, or writes text.")
    writes: bool = Field(description="Whether the answer is a text.")
    pairs: bool
    candidates: bool = Field(description="Whether rows bring candidates, of which one is picked.")
    dims: int | None = Field(default=None, description="Of its vectors, where answers are such.")
    fields: list[str] | None = Field(default=None, description="The columns that it reads, where it is posed as text.")
    max_length: int = Field(description="In tokens; what is longer is cut, or read in windows.")
    stride: int | None = Field(default=None, description="Tokens that two windows share, where texts are not cut.")
    available: bool = Field(description="False where its files cannot be opened; the service's log says why.")


class Tasks(BaseModel):
    """All tasks, and the templates that a new one can start from."""

    tasks: list[Task]
    templates: list[str]
    tuning: bool


class Status(BaseModel):
    """What the service is doing now."""

    ready: bool
    tasks: int
    uptime_s: float
    rows: int = Field(description="Answered since the start.")
    rows_per_s: float = Field(description="Over the last ten seconds.")
    latency_p50_ms: float | None = Field(description="Of requests in the last ten seconds.")
    latency_p90_ms: float | None
    queued_rows: int
    memory_bytes: int = Field(description="Resident, of the process.")


class Health(BaseModel):
    """``ok``, or why not."""

    status: Literal["ok", "starting", "stopping"]
    unavailable_tasks: int | None = Field(default=None, description="Tasks that cannot be opened; the others answer.")
    unavailable: list[str] | None = Field(default=None, description="Their names, where the token was sent.")


class TuningJob(BaseModel):
    """A fine-tuning run."""

    job: str
    task: str
    state: Literal["running", "done", "failed", "stopped"]
    phase: str | None = None
    done: int = 0
    total: int = 0
    loss: float | None = None
    score: float | None = None
    result: dict[str, Any] | None = None
    error: Fault | None = None
