"""The pictures of the dashboards are those of the JSON, and show every panel inside its frame."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from docs.tools.dashboard_pictures import PICTURES, metrics, picture, pictures
from k8s.dashboards.boards import BOARDS
from k8s.dashboards.panels import FOLDER
from tests.documents import REPOSITORY, text

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [board.name for board in BOARDS]


def board(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def test_the_pictures_are_up_to_date_and_no_other_is_there():
    drawn = {path.name: path.read_text("utf-8") for path in PICTURES.iterdir()}
    assert drawn == {path.name: words for path, words in pictures().items()}, (
        "run python -m docs.tools.dashboard_pictures"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_is_drawn_with_all_that_it_asks_for(name):
    image = ElementTree.fromstring(picture(board(name)))
    words = [element.text for element in image.iter(f"{SVG}text")]
    joined = "".join(words)
    for panel in board(name)["panels"]:
        assert panel["title"] in " ".join(words)
        if panel["type"] != "row":
            assert metrics(panel)
            assert all(metric in joined for metric in metrics(panel)), "its frame is too small"


@pytest.mark.parametrize("name", NAMES)
def test_frames_lie_where_the_grid_says(name):
    image = ElementTree.fromstring(picture(board(name)))
    _, *frames = image.iter(f"{SVG}rect")
    for frame, panel in zip(frames, board(name)["panels"], strict=True):
        x, width = (float(frame.get(side)) / float(image.get("width")) for side in ("x", "width"))
        assert x == pytest.approx(panel["gridPos"]["x"] / 24, abs=0.012)
        assert width == pytest.approx(panel["gridPos"]["w"] / 24, abs=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_on_a_page(name):
    page = text(REPOSITORY / "docs" / "metrics.md")
    assert f"](images/dashboards/{name}.svg)" in page
