"""`heatbath transfer`: a recipe at another batch size, momentum or law, by the rule of the theory; and its proof."""

from __future__ import annotations

from typing import Annotated, Any

from heatbath.cli.screens import Answer, print_table, say, say_verdicts
from heatbath.cli.summaries import diverged_status
from heatbath.cli.training import Training
from heatbath.laws import parse_law
from heatbath.runs.configs import RunConfig


def transfer_recipe(
    *,
    lr: Annotated[float, "Learning rate of the recipe."],
    batch_size: Annotated[int, "Batch size of the recipe."],
    optimizer: Annotated[str, "sgd or adamw."] = "sgd",
    momentum: Annotated[float | None, "Momentum, 0 by default; for AdamW its beta1, 0.9 by default."] = None,
    beta2: Annotated[float, "AdamW's beta2."] = RunConfig.beta2,
    weight_decay: Annotated[float, "Weight decay; decoupled for AdamW."] = 0.0,
    nesterov: bool = False,
    law: str = "constant",
    dataset_size: int | None = None,
    to_batch_size: int | None = None,
    to_momentum: float | None = None,
    to_law: str | None = None,
    to_optimizer: str | None = None,
    prove: str | None = None,
    margin: str | None = None,
    metric: Annotated[str, "The metric to compare."] = "test_accuracy",
    epochs: Annotated[int, "Epochs of each run."] = 20,
    max_seeds: Annotated[int, "Most seeds of each recipe."] = 40,
    budget: Annotated[str | None, "Stop after this many runs, or after a time."] = None,
    training: Training,
) -> Answer:
    """Print the recipe that theory predicts at another batch size, momentum or law, and its assumptions.

    With --prove, both recipes are trained on a task and compared within --margin. Without it, nothing is tested.
    """
    from heatbath.studies import transfer as study

    if to_optimizer not in (None, "sgd", "adamw"):
        raise ValueError(f"--to-optimizer must be sgd or adamw, got {to_optimizer!r}")
    if to_optimizer not in (None, optimizer):
        raise ValueError(
            f"the theory has no rule from {optimizer} to {to_optimizer}: their rates are not in the same units; tune "
            "the new rate, and let 'heatbath race' tell which is better"
        )
    own = momentum if momentum is not None else 0.9 if optimizer == "adamw" else 0.0
    recipe = study.Recipe(optimizer, lr, batch_size, own, beta2, weight_decay, nesterov, parse_law(law))
    to: dict[str, Any] = {"batch_size": to_batch_size, "momentum": to_momentum, "law": to_law}
    found = study.transfer(recipe, **to, dataset_size=dataset_size)
    ended = None
    if prove is not None:
        if margin is None:
            raise ValueError("--prove needs a --margin, within which the recipes count as equal")
        training.options()
        race: dict[str, Any] = {"metric": metric, "max_seeds": max_seeds, "budget": budget, "store": training.store}
        ended = study.prove(found, _base(prove, epochs, training), margin, **race, train=training.complete)
    data = {**found.to_dict(), "proof": None if ended is None else ended.to_dict()}
    status = 0 if ended is None else diverged_status(record for runs in ended.records.values() for record in runs)
    return Answer(data, lambda: _show(found, ended, prove), status)


def _show(found: Any, ended: Any, prove: str | None) -> None:
    """Rows of what there is to an optimizer: SGD has no second beta, AdamW no law."""
    columns = {"lr": ".6g", "batch_size": "d", "momentum": ".6g", "beta2": ".6g", "weight_decay": ".4g", "law": ""}
    del columns["beta2" if found.original.optimizer == "sgd" else "law"]
    rows = [
        (name, *(format(getattr(recipe, column), form) for column, form in columns.items()))
        for name, recipe in (("original", found.original), ("moved", found.moved))
    ]
    titles = {"batch_size": "batch", "weight_decay": "decay"}
    say(f"{found.rule}\n")
    print_table(("", *(titles.get(name, name) for name in columns)), rows)
    say("", "Assumed:", *(f"- {text}" for text in found.assumed), "")
    if ended is None:
        say("Nothing of this has been tested; --prove TASK --margin X does.")
        return
    proved = [one.verdict for one in ended.comparisons] == ["equal"]
    words = [one.sentence for one in ended.comparisons] or [ended.sentence]
    say_verdicts(f"{'Proved' if proved else 'Not proved'} on {prove}: {words[0]}")


def _base(task: str, epochs: int, training: Training) -> RunConfig:
    """The task as a run."""
    if ":" in task:
        return RunConfig(task=training.import_task(task), epochs=epochs, batch_size=1)
    model, slash, dataset = task.partition("/")
    if not slash or not model or not dataset:
        raise ValueError(f"--prove must be model/dataset, such as mlp/mnist5k, or package.module:task, got {task!r}")
    return RunConfig(model=model, dataset=dataset, epochs=epochs, batch_size=1)
