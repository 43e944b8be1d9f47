"""Checks that Python files take from each other only names that are there, and import nothing that they do not use."""
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# usage: python_names.py ROOT
import ast, os, sys
from source_files import files, report


def defined(tree):
    """The names of a module: what its statements outside functions bind."""
    names = set()
    for node in tree.body:
        names.update({getattr(node, "name", None)})
        for inner in [] if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
            elif isinstance(inner, ast.alias):
                names.add(inner.asname or inner.name.split(".")[0])
    return names


def problems(path, trees, texts):
    """`trees`: of each Python file, by path. A neighbour is a module whose file lies beside this one. What is imported
    for its effect has a comment that says so."""
    neighbours, imported = {}, {}
    used = {node.id for node in ast.walk(trees[path]) if isinstance(node, ast.Name)}
    for node in ast.walk(trees[path]):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                imported[alias.asname or alias.name.split(".")[0]] = node.lineno
        if isinstance(node, ast.Import):
            for alias in node.names:
                neighbours[alias.asname or alias.name] = os.path.join(os.path.dirname(path), alias.name + ".py")
        elif isinstance(node, ast.ImportFrom):
            other = os.path.join(os.path.dirname(path), f"{node.module}.py")
            for alias in node.names:
                if other in trees and alias.name not in defined(trees[other]):
                    yield f"{path}:{node.lineno}: `{other}` has no `{alias.name}`"
    for node in ast.walk(trees[path]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            other = neighbours.get(node.value.id)
            if other in trees and node.attr not in defined(trees[other]):
                yield f"{path}:{node.lineno}: `{other}` has no `{node.attr}`"
    for name, line in imported.items():
        if name not in used and name != "annotations" and "#" not in texts[path].splitlines()[line - 1]:
            yield f"{path}:{line}: `{name}` is imported and not used"


def main():
    root, trees, texts = sys.argv[1], {}, {}
    for path in files(root):
        if path.endswith(".py"):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                texts[path] = file.read()
            trees[path] = ast.parse(texts[path], path)
    return report([problem for path in sorted(trees) for problem in problems(path, trees, texts)])


if __name__ == "__main__":
    sys.exit(main())
