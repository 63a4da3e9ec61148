"""A traced and compiled step is the step; where it cannot be compiled, the function itself is called."""

import pytest
import torch

import heatbath as hb
from heatbath.engine.batched_task import BatchedTask
from heatbath.engine.task_replica import split_task
from heatbath.engine.traced_program import TracedProgram
from task_models import NAMES, make_task


@pytest.mark.parametrize("name", NAMES)
def test_traced_steps_of_tasks_are_the_steps(name):
    """With dropout, running means and tied weights; the last batch has another shape."""
    task = make_task(name)
    runs = [hb.RunConfig(task=task, epochs=2, batch_size=40, seed=seed, lr=0.01) for seed in (3, 8)]
    splits = split_task(task, 0)
    plain, traced = BatchedTask(runs, splits, "fp32"), BatchedTask(runs, splits, "fp32")
    program = TracedProgram(traced._gradients, backend="aot_eager")
    traced._gradients = program
    for epoch in range(2):
        for group in (plain, traced):
            group.prepare(epoch)
            for step in range(3):
                group.step(step)
    # Hugging Face's looks at the values of its mask, which no program without Python can: it is called as it is.
    assert (program.reason is None) == (name != "hugging_face")
    for one, other in zip(plain.states(), traced.states(), strict=True):
        for key, value in one.items():
            torch.testing.assert_close(other[key], value, rtol=2e-3, atol=2e-4, msg=key)


def test_nested_arguments_and_other_shapes():
    calls = []

    def function(pair, scale):
        calls.append(1)
        return {"sum": pair["a"] + scale * pair["b"]}, [pair["a"].sum()]

    program = TracedProgram(function, backend="eager")
    for size in (3, 3, 5):
        pair = {"a": torch.arange(float(size)), "b": torch.ones(size)}
        for scale in (2.0, 3.0):
            found, (total,) = program(pair, torch.tensor(scale))
            assert torch.equal(found["sum"], pair["a"] + scale)
            assert total == pair["a"].sum()
    assert program.reason is None
    assert len(calls) == 2, "traced once for each shape"


def test_what_cannot_be_compiled_is_called(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    program = TracedProgram(lambda x: x + 1)
    assert program(torch.ones(2)).tolist() == [2.0, 2.0]
    assert program.reason == "RuntimeError: no compiler"
    memory = TracedProgram(lambda x: x + 1)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: _out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        memory(torch.ones(2))


def _out_of_memory(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")
