"""Every command that a message or the catalogue suggests is one: the command line takes it as it is printed."""

import ast
import functools
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

import ckptzoo
from ckptzoo.cli.app import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ckptzoo"
MENTION = re.compile(r"ckptzoo ((?:[a-z]+(?:-[a-z]+)*(?: |(?=[^\w-])|$))+)")
SHARED = {
    "hub/contributions": ("contribute", "review"),
    "hub/contributions/near_copies.py": ("review",),
    "hub/contributions/review.py": ("review",),
    "hub/contributions/matching.py": ("contribute",),
    "hub/contributions/new_zoo.py": ("contribute",),
    "hub/contributions/inputs.py": ("predict", "study barriers", "study compact", "study steps"),
    "hub/imports": ("import",),
    "hub/imports/split_lists.py": ("splits import",),
    "hub/push": ("push",),
    "hub/card": ("card",),
    "hub/exports/targets.py": ("export",),
    "derive/aligned.py": ("align",),
    "derive/checks.py": ("derive", "align"),
    "derive/near_copies.py": ("dedupe",),
    "derive/predictions.py": ("predict",),
    "derive/tables.py": ("derive", "align", "dedupe"),
    "derive/variants.py": ("derive", "align"),
    "explorer": ("page",),
    "studies/permutations.py": ("study permutations",),
    "studies/collapse.py": ("study collapse",),
}
"""The commands that show the messages of a module, or of the modules in a folder: each has the options they name."""
ELSEWHERE = {
    "--keep-steps": "an option of the builders, which make the zoo",
    "--layers": "of the pull that made the zoo",
    "--dereference": "of tar",
    "--sparse": "of tar",
}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        if command.invoke_without_command:
            yield " ".join(path), command
        for name, other in command.commands.items():
            yield from leaves(other, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS: Mapping[str, Any] = dict(leaves(typer.main.get_command(app)))


@functools.cache
def texts(path: Path) -> tuple[str, ...]:
    """The texts of a module but its docstrings: fields of f-strings are ``1``, those of whole options nothing."""
    found, left = list[str](), list[ast.AST]([ast.parse(path.read_text(encoding="utf-8"))])
    while left:
        node = left.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        if not isinstance(node, ast.JoinedStr | ast.Constant | ast.Name):
            children = ast.iter_child_nodes(node)
            left += [
                item for item in children if not isinstance(item, ast.Expr) or not isinstance(item.value, ast.Constant)
            ]
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(item.value)
                if isinstance(item, ast.Constant)
                else ("" if "options" in ast.unparse(item) else "1" if "command" not in ast.unparse(item) else "ZOO")
                for item in node.values
            )
            found.append(text)
    return tuple(found)


def mentioned(text: str) -> Iterator[tuple[str, list[str]]]:
    """Commands that a text mentions with arguments, and these; of prose behind a command's name nothing is taken."""
    for match in MENTION.finditer(text):
        words = match[1].split()
        name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
        if name is None or len(words) > len(name.split()):
            continue  # a mention by name alone, in a sentence
        options = {option: param for param in COMMANDS[name].params for option in getattr(param, "opts", ())}
        arguments: list[str] = []
        tokens = text[match.end() :].split(" ") if text[match.end() - 1 : match.end()] == " " else []
        value, least = (
            False,
            sum(param.required and not param.opts[0].startswith("-") for param in COMMANDS[name].params),
        )
        for token in tokens:
            word = token.rstrip(".,;:)`'")
            option = word.split("=")[0]
            given = sum(not item.startswith("-") for item in arguments)
            lacks = 0 < given < least
            if not (value or lacks or re.match("--?[a-z]", word) or re.fullmatch(r"[A-Z0-9{][\w./:{}'-]*", word)):
                break
            arguments.append(__file__ if word.startswith("FILE.npz") else "1" if word[:1].isupper() else word)
            value = not value and word.startswith("-") and option in options and not options[option].is_flag
            if word != token:
                break
        if arguments:
            yield name, arguments


def modules() -> list[Path]:
    """Those that name a command or an option."""
    found = [path for path in sorted(PACKAGE.rglob("*.py")) if re.search("ckptzoo |--[a-z]", path.read_text())]
    return [path for path in found if "page" not in path.name and path.name != "review_mark.py"]


def test_commands_that_messages_suggest_are_taken_as_they_are_printed() -> None:
    found, wrong = 0, list[str]()
    for path in modules():
        for text in texts(path):
            for name, arguments in mentioned(text):
                found += 1
                try:
                    COMMANDS[name].make_context(name, list(arguments), resilient_parsing=False)
                except Exception as error:  # click's, whose classes Typer does not export
                    wrong.append(f"{path.relative_to(ROOT)}: {name} {arguments}: {error}")
    assert not wrong, "\n".join(wrong)
    assert found > 30


def test_places_of_zoos_in_suggested_commands_can_be_pasted() -> None:
    """Into a shell: as folder or address, quoted, and not by the name alone."""
    wrong = list[str]()
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "builders").rglob("*.py")):
        content = path.read_text()
        # commands of the report name zoos in folders of its own
        if not re.search(r"(ckptzoo|-m builders) [a-z]+ .*\{", content) or "report" in path.parts:
            continue
        for node in ast.walk(ast.parse(content)):
            items = node.values if isinstance(node, ast.JoinedStr) else []
            for before, item in itertools.pairwise(items):
                shown = ast.unparse(item.value) if isinstance(item, ast.FormattedValue) else ""
                written = r"(?:ckptzoo|-m builders) (?!zoo )[a-z -]+(?:[A-Z]+ (?:--members N )?--to )?$"
                is_command = re.search(written, str(getattr(before, "value", "")))
                # a repository of a hub is known there by its name, as recipes and methods are
                named = r"(?<!repository)(?<!recipe)(?<!model)\.(name|address|here|path|root|folder|_zoo)\b"
                is_place = re.search(rf"{named}|^(root|folder|zoo|path)$", shown)
                if is_command and is_place and not shown.startswith(("quote(", "typed(")):
                    wrong.append(f"{path.relative_to(ROOT)}:{item.lineno}: {shown}")
    assert not wrong, "\n".join(wrong)


def test_commands_of_the_catalogue_are_taken_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layout.csv").write_text("")  # a file that is to be read has to be there
    lines = [line for entry in ckptzoo.catalogue() for line in entry.commands]
    suggested = [
        found for entry in ckptzoo.catalogue() for text in (*entry.before, entry.notes) for found in mentioned(text)
    ]
    for name, arguments in [*((words[1], words[2:]) for words in map(shlex.split, lines)), *suggested]:
        COMMANDS[name].make_context(name, list(arguments), resilient_parsing=False)
    assert len(lines) > 30


def test_options_that_messages_name_are_those_of_their_commands() -> None:
    known = {name: {option for param in command.params for option in param.opts} for name, command in COMMANDS.items()}
    every, wrong = set[str]().union(*known.values()), list[str]()
    for path in modules():
        place = str(path.relative_to(PACKAGE))
        if place.startswith(("cli", "server")):
            continue
        commands = next((SHARED[key] for key in sorted(SHARED, key=len, reverse=True) if place.startswith(key)), ())
        for text in texts(path):
            # the options of a whole command that a text suggests are its own
            alone = re.sub(r"(?:ckptzoo [a-z]|python (?:-m )?[a-z]|diff |pip |^[a-z-]+ \{)(?:[^.;:)`]|\.\w)*", "", text)
            for option in set(re.findall(r"(?<![\w`-])--[a-z][a-z-]+", alone)) - ELSEWHERE.keys():
                option = option.replace("--no-", "--")
                lacking = [name for name in commands if option not in known[name]] or (
                    [] if option in every else ["any"]
                )
                wrong += [f"{place}: {option} is no option of {name}: {text!r}" for name in lacking]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Run ckptzoo align FOLDER --to best, then more.", [("align", ["1", "--to", "best"])]),
        ("ckptzoo verify lists them", []),
        ("ckptzoo predict FOLDER mnist/test", [("predict", ["1", "mnist/test"])]),
        ("(ckptzoo serve user --root FOLDER NAME)", [("serve user", ["--root", "1", "1"])]),
    ],
)
def test_what_counts_as_a_suggestion(text: str, expected: list[tuple[str, list[str]]]) -> None:
    assert list(mentioned(text)) == expected
