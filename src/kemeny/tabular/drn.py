"""Storm's explicit models: reads and writes `.drn` files.

A file has a header and then, for every state, its actions with their transitions:

    @type: MDP
    @reward_models
    profit
    @nr_states
    2
    @model
    state 0 [1.5] init
        action 0 [0]
            0 : 0.9
            1 : 0.1
        action 1 [-2]
            1 : 1
    state 1 …

Numbers in brackets are rewards, one per reward model; words after them are labels. A step earns the reward of its state
and that of its action. In a CTMC the numbers after the colons are rates, a state has an exit rate (`state 0 !2.5`),
earns its reward per unit of time, and that of its action whenever it is left.
"""

import array
import dataclasses
import fractions
import itertools
import pathlib
import re
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

import numpy as np
import scipy.sparse as sp

from kemeny.errors import Renormalised, UserError
from kemeny.tabular.mdp import MDP
from kemeny.tabular.structure import SAID_FROM, row_sums

PRINTED_TOLERANCE = 1e-5
"""How far a row of a file may be from 1. Storm prints ten digits, and older versions six: their error may be 5·10⁻⁶ of
a number that begins with 1."""

DISCRETE, CONTINUOUS = ("DTMC", "MDP"), ("CTMC",)

SECTIONS = ("@parameters", "@reward_models", "@nr_states", "@nr_choices")
"""Parts of the header whose value is on the next line."""

PLAIN = ("double", "rational")
"""Types of values that are plain numbers."""

LABEL = re.compile(r'"([^"]*)"|(\S+)')


@dataclasses.dataclass
class Contents:
    """What is in a file, as far as it is read."""

    path: Any
    kind: str = ""
    reward_line: str = ""
    expected_states: int = -1
    expected_choices: int = -1
    row_states: array.array = dataclasses.field(default_factory=lambda: array.array("q"))
    row_lines: array.array = dataclasses.field(default_factory=lambda: array.array("q"))
    row_starts: array.array = dataclasses.field(default_factory=lambda: array.array("q"))
    row_names: list[str] = dataclasses.field(default_factory=list)
    targets: array.array = dataclasses.field(default_factory=lambda: array.array("q"))
    values: array.array = dataclasses.field(default_factory=lambda: array.array("d"))
    exit_rates: array.array = dataclasses.field(default_factory=lambda: array.array("d"))
    state_rewards: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    row_rewards: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    labels: dict[str, array.array] = dataclasses.field(default_factory=dict)

    def refuse(self, line: int, problem: str) -> NoReturn:
        """The error for a line."""
        raise UserError(f"{self.path}, line {line}: {problem}.")

    @property
    def states(self) -> int:
        """The number of states that were read."""
        return len(self.state_rewards)


def load(path: pathlib.Path | str, reward: str | None = None, costs: str | None = None) -> MDP:
    """Read a model; `reward` and `costs` name a reward model of the file, or a label: its states pay 1.

    By default the rewards are the first reward model, and there are no costs. The states with the label `init` are the
    start, each with the same probability. Actions that are numbered by increasing numbers keep them; other actions are
    numbered by their order in the state. DTMCs and MDPs are read as they are. A CTMC becomes a chain with the same
    averages (uniformisation): all rewards are then per unit of time.
    """
    try:
        with pathlib.Path(path).open(encoding="utf-8", errors="replace") as file:
            found = read(file, path)
    except FileNotFoundError:
        raise UserError(f"The file {path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    check_values(found)
    rows = len(found.row_states)
    row_states = np.array(found.row_states)
    pointers = np.append(np.array(found.row_starts), len(found.targets))
    matrix = sp.csr_array((np.array(found.values), np.array(found.targets), pointers), shape=(rows, found.states))
    matrix.sum_duplicates()
    payments = Payments(found, row_states)
    rewards, charged = payments.choose(reward), None if costs is None else payments.choose(costs)
    if found.kind in CONTINUOUS:
        matrix = uniformise(found, matrix)
    else:
        matrix = renormalise(found, matrix)
    start = None
    if "init" in found.labels:
        start = np.zeros(found.states)
        start[np.array(found.labels["init"])] = 1 / len(set(found.labels["init"]))
    actions = number_actions(found, row_states)
    return MDP.from_pairs(
        row_states, actions, matrix, rewards, costs=charged, start=start, name=pathlib.Path(path).stem
    )


# The text


def read(file: TextIO, path: Any) -> Contents:
    """Everything in a file, in the order in which it is there."""
    found = Contents(path)
    lines = enumerate(file, 1)
    read_header(found, lines)
    add_target, add_value, in_action = found.targets.append, found.values.append, False
    for number, line in lines:
        word = line.lstrip()
        if word[:1].isdigit():  # most lines of a large file: `4 : 0.25`, the next state and its probability or rate
            if not in_action:
                found.refuse(number, "a transition before the first action of its state")
            target, _, value = word.partition(":")
            try:
                add_target(int(target))
                add_value(float(value))
            except (ValueError, OverflowError):
                read_transition(found, number, word)
        elif word.startswith("action "):
            read_action(found, number, word)
            in_action = True
        elif word.startswith("state "):
            read_state(found, number, word)
            in_action = False
        elif word and not word.startswith("//"):
            found.refuse(number, f"a state, an action or a transition was expected, not {shown(word)}")
    if found.states != found.expected_states:
        raise UserError(
            f"{path} announces {counted(found.expected_states, 'state')} in its header, but it has "
            f"{found.states:,}; perhaps the end is missing."
        )
    check_last_action(found)
    if found.row_states[-1] != found.states - 1:
        raise UserError(f"{path}: the last state, {found.states - 1}, has no action; perhaps the end is missing.")
    if found.expected_choices not in (-1, len(found.row_states)):
        raise UserError(
            f"{path} announces {counted(found.expected_choices, 'action')} in its header (@nr_choices), but it has "
            f"{len(found.row_states):,}."
        )
    return found


def read_header(found: Contents, lines: Iterator[tuple[int, str]]) -> None:
    """Read as far as the line `@model`."""
    for number, line in lines:
        text = line.strip()
        if not text or text.startswith("//"):
            continue
        if not text.startswith("@"):
            found.refuse(number, f"this is no .drn file: a line such as '@type: MDP' was expected, not {shown(text)}")
        if text == "@model":
            if not found.kind or found.expected_states < 0:
                found.refuse(number, "the header needs @type and @nr_states before @model")
            return
        if text.startswith("@type:"):
            found.kind = text.removeprefix("@type:").strip()
            refuse_kind(found, number)
        elif text.startswith("@value_type:"):
            kind = text.removeprefix("@value_type:").strip()
            if kind not in PLAIN:
                found.refuse(number, f"values of the type {shown(kind)} are not supported, only plain numbers")
        elif text in SECTIONS:
            number, value = next(lines, (number, ""))
            read_section(found, number, text, value)
        else:
            found.refuse(number, f"{shown(text)} is not known in the header of a .drn file")
    raise UserError(f"{found.path} is no .drn file, or its end is missing: it has no line '@model'.")


def read_section(found: Contents, number: int, section: str, value: str) -> None:
    """A part of the header."""
    if section == "@parameters":
        if value.strip():
            found.refuse(number, f"the model has parameters ({value.strip()[:60]}); give them values in Storm first")
    elif section == "@reward_models":
        found.reward_line = value.rstrip("\n")
    else:
        if not value.strip().isdecimal():
            found.refuse(number, f"after {section} a number was expected, not {shown(value)}")
        if section == "@nr_states":
            found.expected_states = int(value)
        else:
            found.expected_choices = int(value)


def refuse_kind(found: Contents, number: int) -> None:
    """Raise an error for a type of model that has no counterpart here."""
    if found.kind in DISCRETE + CONTINUOUS:
        return
    reasons = {
        "Markov Automaton": "its immediate states take no time, so it has no counterpart in steps",
        "POMDP": "its states are not observed",
    }
    why = f" ({reasons[found.kind]})" if found.kind in reasons else ""
    found.refuse(number, f"a model of type {shown(found.kind)} is not supported{why}; DTMC, MDP and CTMC are")


def read_state(found: Contents, number: int, line: str) -> None:
    """`state 3 !2.5 [1, 0] init "two words"`: number, exit rate, rewards, labels."""
    check_last_action(found)
    name, _, rest = line[6:].strip().partition(" ")
    state = found.states
    if name != str(state):
        found.refuse(number, f"state {state} was expected, not {shown(name)}: states must be 0, 1, 2, … in this order")
    if state >= found.expected_states:
        found.refuse(number, f"the header announces {counted(found.expected_states, 'state')}, but here is one more")
    if state and (not found.row_states or found.row_states[-1] != state - 1):
        found.refuse(number, f"state {state - 1} has no action")
    rest = rest.lstrip()
    if found.kind in CONTINUOUS:
        rate, _, rest = rest.partition(" ")
        if not rate.startswith("!"):
            found.refuse(number, f"state {state} of a CTMC needs its exit rate, such as !2.5")
        found.exit_rates.append(read_number(found, number, rate[1:]))
    rewards, rest = read_rewards(found, number, rest.lstrip())
    found.state_rewards.append(rewards)
    for quoted, plain in LABEL.findall(rest) if rest else ():
        found.labels.setdefault(quoted or plain, array.array("q")).append(state)


def read_action(found: Contents, number: int, line: str) -> None:
    """`action 1 [0, 2]`: a name, and rewards."""
    check_last_action(found)
    if not found.state_rewards:
        found.refuse(number, "an action before the first state")
    name, _, rest = line[7:].strip().partition(" ")
    if found.kind != "MDP" and found.row_states and found.row_states[-1] == found.states - 1:
        found.refuse(number, f"state {found.states - 1} of a {found.kind} has a second action")
    found.row_states.append(found.states - 1)
    found.row_lines.append(number)
    found.row_starts.append(len(found.targets))
    found.row_names.append(name)
    found.row_rewards.append(read_rewards(found, number, rest.lstrip())[0])


def check_last_action(found: Contents) -> None:
    """Raise an error if the last action has no transitions."""
    if found.row_starts and found.row_starts[-1] == len(found.targets):
        found.refuse(found.row_lines[-1], "this action has no transitions")


def read_rewards(found: Contents, number: int, text: str) -> tuple[tuple[float, ...], str]:
    """The numbers in brackets at the beginning of a text, and what follows."""
    if not text.startswith("["):
        return (), text
    inside, closed, rest = text[1:].partition("]")
    if not closed:
        found.refuse(number, "the bracket of the rewards is not closed")
    return tuple(read_number(found, number, value) for value in inside.split(",")), rest


def read_transition(found: Contents, number: int, line: str) -> None:
    """A transition whose value is no float; its next state, if it is a number, has been read."""
    value = line.partition(":")[2]
    if len(found.targets) == len(found.values):
        found.refuse(number, f"a transition such as '4 : 0.25' was expected, not {shown(line)}")
    found.values.append(read_number(found, number, value))


def read_number(found: Contents, number: int, text: str) -> float:
    """A number or a fraction."""
    try:
        return float(text) if "/" not in text else float(fractions.Fraction(text.strip()))
    except (ValueError, ZeroDivisionError, OverflowError):
        hint = ""
        if text.strip().startswith("["):
            hint = "; models with intervals are not supported"
        elif re.search(r"[A-Za-z$]", text):
            hint = "; models with parameters are not supported, give them values in Storm first"
        found.refuse(number, f"a number was expected, not {shown(text)}{hint}")


def shown(text: str) -> str:
    """At most thirty characters of a text in quotation marks."""
    text = text.strip()
    return repr(text if len(text) <= 30 else text[:29] + "…")


def counted(count: int, noun: str) -> str:
    """1 state, 2 states."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# What it means


def check_values(found: Contents) -> None:
    """Raise an error for a next state or a value that cannot be."""
    targets, values = np.array(found.targets), np.array(found.values)
    for wrong, problem in (
        (targets >= found.states, f"leads to state {{target}}, but the states are 0 to {found.states - 1}"),
        (~np.isfinite(values) | (values < 0), "has the value {value:g}"),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            line = found.row_lines[int(np.searchsorted(np.array(found.row_starts), first, side="right")) - 1]
            text = problem.format(target=targets[first], value=values[first])
            found.refuse(line, f"a transition of this action {text}")


class Payments:
    """The reward models and the labels of a file, as rewards per pair."""

    def __init__(self, found: Contents, row_states: np.ndarray):
        self.found, self.row_states = found, row_states
        count = max(map(len, itertools.chain(found.state_rewards, found.row_rewards)))
        # An unnamed reward model has an empty name, so two separators in a row count.
        names = re.split(r"[ \t]", found.reward_line)
        self.names = [names[i] if i < len(names) else f"rew{i}" for i in range(count)]

    def choose(self, name: str | None) -> np.ndarray:
        """The rewards of the reward model, or of the label, with this name; of the first reward model without one."""
        labels = [label for label in self.found.labels if label != "init"]
        if name is None and not self.names:
            raise UserError(
                f"{self.found.path} has no rewards; name a label instead, whose states then pay 1: "
                f"reward={' or '.join(map(repr, [*labels, 'init'][:6]))}."
            )
        if name is None or name in self.names:
            return self.of_model(0 if name is None else self.names.index(name))
        if name in self.found.labels:
            paid = np.zeros(self.found.states)
            paid[np.array(self.found.labels[name])] = 1.0
            return paid[self.row_states]
        models, every = (", ".join(map(repr, known)) or "none" for known in (self.names, self.found.labels))
        raise UserError(
            f"{self.found.path} has no reward model or label {name!r}. Reward models: {models}; labels: {every}."
        )

    def of_model(self, index: int) -> np.ndarray:
        """What a pair earns, by its state and by its action; in a CTMC the second as often as the state is left."""
        of_state, of_row = (
            np.array([row[index] if index < len(row) else 0.0 for row in rows])
            for rows in (self.found.state_rewards, self.found.row_rewards)
        )
        if self.found.kind in CONTINUOUS:
            of_row = of_row * np.array(self.found.exit_rates)
        return of_state[self.row_states] + of_row


def renormalise(found: Contents, matrix: sp.csr_array) -> sp.csr_array:
    """The rows divided by their sums; a warning says so if that changes more than rounding."""
    sums = row_sums(matrix)
    distance = np.abs(sums - 1)
    worst = int(np.argmax(distance))
    if distance[worst] > PRINTED_TOLERANCE:
        first = int(np.argmax(distance > PRINTED_TOLERANCE))
        found.refuse(found.row_lines[first], f"the probabilities of this action sum to {sums[first]:.10g}, not to 1")
    said = int((distance > SAID_FROM).sum())
    if said:
        warnings.warn(
            f"{found.path}: the probabilities of {counted(said, 'action')} did not sum to 1 and were divided by their "
            f"sum; the largest difference, {distance[worst]:.1e}, is in line {found.row_lines[worst]}.",
            Renormalised,
            stacklevel=5,
        )
    return sp.csr_array(sp.diags_array(1 / sums) @ matrix)


def uniformise(found: Contents, rates: sp.csr_array) -> sp.csr_array:
    """P = I + Q/Λ, where Λ is the largest exit rate: a chain with the same share of time in each state."""
    sums, given = row_sums(rates), np.array(found.exit_rates)
    wrong = np.abs(sums - given) > PRINTED_TOLERANCE * np.maximum(sums, given)
    if wrong.any():
        first = int(np.argmax(wrong))
        found.refuse(
            found.row_lines[first],
            f"the rates of state {first} sum to {sums[first]:.10g}, but its exit rate is {given[first]:.10g}",
        )
    fastest = float(sums.max())
    if fastest == 0:
        return sp.csr_array(sp.eye_array(found.states))
    return sp.csr_array(rates / fastest + sp.diags_array(1 - sums / fastest))


def number_actions(found: Contents, row_states: np.ndarray) -> np.ndarray:
    """The number of each action: its name, if all names are numbers that increase within a state; else its position."""
    first = np.flatnonzero(np.diff(row_states, prepend=-1))
    position = np.arange(len(row_states)) - first[np.searchsorted(first, np.arange(len(row_states)), side="right") - 1]
    if not all(name.isdecimal() and len(name) <= 9 for name in found.row_names):
        return position
    named = np.array(found.row_names, dtype=np.int64)
    increases = np.diff(named, prepend=-1) > 0
    increases[first] = True
    return named if increases.all() else position


# Writing


def save(mdp: MDP, path: pathlib.Path | str) -> None:
    """Write a model for Storm: a DTMC if there is one action, else an MDP; reward models `reward` and `cost`.

    Storm's start states are equally likely, so the start distribution must be uniform over some states.
    """
    starts = mdp.start > 0
    if not np.allclose(mdp.start[starts], 1 / starts.sum(), rtol=1e-9):
        raise UserError("A .drn file cannot hold a start distribution with different probabilities; write a .npz file.")
    signals = [mdp.rewards] if mdp.costs is None else [mdp.rewards, mdp.costs]
    pairs = mdp.n_states * mdp.n_actions if mdp.allowed is None else int(mdp.allowed.sum())
    header = [
        "// Exported by Kemeny",
        f"@type: {'DTMC' if mdp.n_actions == 1 else 'MDP'}",
        "@value_type: double",
        "@parameters",
        "",
        "@reward_models",
        "reward" if mdp.costs is None else "reward cost",
        "@nr_states",
        str(mdp.n_states),
        "@nr_choices",
        str(pairs),
        "@model",
    ]
    zeros = ", ".join("0" for _ in signals)
    matrix = sp.csr_array(mdp.P)
    with pathlib.Path(path).open("w", encoding="utf-8") as file:
        file.write("\n".join(header) + "\n")
        for s in range(mdp.n_states):
            file.write(f"state {s} [{zeros}]{' init' if starts[s] else ''}\n")
            for a in range(mdp.n_actions) if mdp.allowed is None else np.flatnonzero(mdp.allowed[s]):
                earned = ", ".join(repr(float(signal[s, a])) for signal in signals)
                span = slice(matrix.indptr[a * mdp.n_states + s], matrix.indptr[a * mdp.n_states + s + 1])
                moves = zip(matrix.indices[span].tolist(), matrix.data[span].tolist(), strict=True)
                lines = [f"\taction {a} [{earned}]", *(f"\t\t{target} : {value!r}" for target, value in moves)]
                file.write("\n".join(lines) + "\n")
