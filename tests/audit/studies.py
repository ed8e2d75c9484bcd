"""The case studies of ``benchmarks``, whose folder is no place to import from: its files have the names of packages."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_SPEC = spec_from_file_location("case_studies", Path(__file__).parents[2] / "benchmarks" / "case_studies.py")
assert _SPEC is not None and _SPEC.loader is not None
case_studies = module_from_spec(_SPEC)
sys.modules["case_studies"] = case_studies
_SPEC.loader.exec_module(case_studies)
