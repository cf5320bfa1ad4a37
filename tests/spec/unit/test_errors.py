"""What every error of dsort shows."""

from __future__ import annotations

import pickle
import traceback

from dsort.errors import InputError, SpecError, SpecProblem


def test_a_traceback_in_python_shows_the_hint() -> None:
    error = InputError("there is no shard x.tar", hint="`dsort ls` shows what is there")
    for each in (error, pickle.loads(pickle.dumps(error))):
        shown = "".join(traceback.format_exception(each))
        assert shown.count("hint: `dsort ls` shows what is there") == 1


def test_a_traceback_in_python_shows_the_hint_of_a_problem_of_a_spec() -> None:
    error = SpecError([SpecProblem("order", "there is no order shard", "shards or sequential")])
    assert "shards or sequential" in "".join(traceback.format_exception(error))
