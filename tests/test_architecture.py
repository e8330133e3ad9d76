"""The lines between the packages, held by reading the code and by importing it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("packing", "balancer", "loaders")


def python_files(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imported_names(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield "torch.distributed"


def test_only_the_runtime_uses_torch_distributed():
    runtime = ROOT / "balancer" / "runtime"
    guilty = [
        str(path.relative_to(ROOT))
        for path in python_files(*PACKAGES)
        if runtime not in path.parents
        and any(name.startswith("torch.distributed") for name in imported_names(path))
    ]
    assert guilty == []


@pytest.mark.parametrize("package", ["packing", "balancer"])
def test_planning_needs_neither_torch_nor_datasets_nor_ray(package):
    heavy = ("torch", "datasets", "ray", "pandas", "matplotlib")
    code = f"import sys, {package}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_only_the_ray_engine_imports_ray():
    engine = ROOT / "loaders" / "ray_engine"
    guilty = [
        str(path.relative_to(ROOT))
        for path in python_files(*PACKAGES)
        if engine not in path.parents
        and any(name == "ray" or name.startswith("ray.") for name in imported_names(path))
    ]
    assert guilty == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package):
    code = (
        f"import {package}; "
        f"print([name for name in {package}.__all__ if callable(getattr({package}, name)) "
        f"and not (getattr({package}, name).__doc__ or '').strip()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
