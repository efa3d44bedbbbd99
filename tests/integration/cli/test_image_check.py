"""What the image asks of itself when it is built: `specdec doctor` over a model made then."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys

from tests.conftest import REPOSITORY

CHECK = REPOSITORY / "docker" / "check_image.py"


def test_the_doctor_takes_the_checks_model_for_one(tmp_path):
    runpy.run_path(str(CHECK))["save_model"](str(tmp_path))
    command = [sys.executable, "-m", "specdec.cli", "doctor", "--json", "--target", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    checks = {check["name"]: check["verdict"] for check in json.loads(ran.stdout)["checks"]}
    # A port may be in use where the tests run, and is not where an image is built.
    assert checks["target"] == checks["fit"] == checks["packages: serve"] == "ok"
