"""Dataclasses of the rooms that mypyc compiles keep to the field types that it can compile.

A field whose type is ``object``, or a class that is imported for type checkers only, passes the compiler, and the compiled module
fails or crashes when it is imported. ``make compiled`` finds that too, after minutes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.build_backend import PACKAGE, modules, parts, sources


def unusable_names(module: ast.Module) -> set[str]:
    """Names that do not exist when the module is imported, and ``object``."""
    names = {"object"}
    for node in module.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    names |= {alias.asname or alias.name for alias in inner.names}
    return names


def wrong_fields(text: str) -> Iterator[str]:
    module = ast.parse(text)
    unusable = unusable_names(module)
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) in unusable:
                    yield f"{node.name}: {ast.unparse(field)}"


def test_fields_of_compiled_dataclasses_have_types_that_exist() -> None:
    assert [f"{file.name} {wrong}" for file in modules() for wrong in wrong_fields(file.read_text())] == []


def test_the_list_of_compiled_parts_gives_modules_and_what_they_import() -> None:
    compiled = {str(file.relative_to(PACKAGE)) for file in modules()}

    assert {"amqp/decode.py", "engine/queues/queue.py"} <= compiled
    assert not [name for name in compiled if name.endswith("__init__.py")]
    assert {name.partition("/")[0] for name in compiled} == {part.partition(".")[0] for part in parts()}
    assert PACKAGE / "errors.py" in set(sources()) - set(modules())


def test_the_check_sees_both_mistakes() -> None:
    text = "if TYPE_CHECKING:\n    from a import B\n@dataclass\nclass C:\n    x: object\n    y: B\n    z: B | None\n"

    assert list(wrong_fields(text)) == ["C: x: object", "C: y: B"]
