"""Write every dashboard beside the alert rules."""

from k8s.dashboards.boards import BOARDS
from k8s.dashboards.panels import FOLDER, as_json

if __name__ == "__main__":
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(as_json(board), "utf-8")
