"""The compiled form in a checkout: `make fast` puts it in place, `make slow` removes it.

The libraries stand beside the sources, where Python finds them first. They are used only as long as no source that they were made
from has changed (``pairbus.form``). Compiling takes minutes and needs a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from tools.build_backend import PACKAGE, SOURCE, NotCompiled, compile_package, form_file, modules, parts

FORM_FILE = PACKAGE / "form.json"
PROOF = """
import importlib, sys
wrong = [name for name in {names!r} if not importlib.import_module(name).__file__.endswith((".so", ".pyd"))]
sys.exit("not compiled: " + ", ".join(wrong) if wrong else 0)
"""


def remove() -> None:
    """Take the libraries out of the checkout."""
    FORM_FILE.unlink(missing_ok=True)
    for pattern in ("*.so", "*.pyd"):
        for file in PACKAGE.rglob(pattern):
            file.unlink()


def put_in_place() -> None:
    """Compile what changed and lay the libraries beside the sources."""
    # What the compiler reads is what the form file describes, even if a source is changed meanwhile.
    content = form_file("compiled", is_checkout=True)
    lib = compile_package()
    remove()
    shutil.copytree(lib, SOURCE, dirs_exist_ok=True)
    FORM_FILE.write_text(content)
    prove()


def prove() -> None:
    """End with an error unless every listed module really comes from a library."""
    names = [".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in modules()]
    environment = {**os.environ, "PAIRBUS_FORM": "compiled"}
    subprocess.run([sys.executable, "-c", PROOF.format(names=names)], env=environment, check=True)


def main() -> int:
    """Put the compiled form in place, or remove it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fast", "slow"])
    if parser.parse_args().what == "slow":
        remove()
        print("this checkout runs in its pure form")
        return 0
    print("compiling what changed; from nothing this takes minutes")
    try:
        put_in_place()
    except NotCompiled as error:
        print(error.said, file=sys.stderr)
        print(f"nothing is compiled: {error}", file=sys.stderr)
        return 1
    print(
        f"this checkout runs compiled ({len(modules())} modules of {', '.join(parts())}) until one of those changes;\n"
        "`make slow` goes back to the pure form"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
