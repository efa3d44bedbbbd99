"""The operators' page: which files it has, how they leave, and that nothing leads elsewhere."""

from __future__ import annotations

import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from hatchling.builders.wheel import WheelBuilder
from ray import serve

from deployments.gateway import http_app
from deployments.page_routes import ASSETS, FOLDER, INDEX

REPOSITORY = Path(__file__).resolve().parents[3]
MAX_LINES = 300
VENDORED = "uplot/"
SCRIPTS = [name for name in ASSETS if name.endswith(".js")]
OWN = [INDEX, *(name for name in ASSETS if not name.startswith(VENDORED))]
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Tags(HTMLParser):
    """Every start tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module", params=["", "/below/a/prefix"])
def prefix(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def http(prefix):
    """The gateway's routes; of the gateway itself the page's need only the settings."""
    context = SimpleNamespace(servable_object=SimpleNamespace(allowed_origins=()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "get_replica_context", lambda: context)
        yield TestClient(http_app, root_path=prefix, raise_server_exceptions=False)


def tags() -> list[tuple[str, dict[str, str | None]]]:
    return Tags((FOLDER / INDEX).read_text("utf-8")).found


def links() -> list[str]:
    values = [given.get(name) for _, given in tags() for name in ("src", "href")]
    return [value for value in values if value is not None]


def test_every_file_arrives_as_what_it_is(http, prefix):
    page = http.get(f"{prefix}/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (FOLDER / INDEX).read_bytes()
    assert ASSETS
    for name in ASSETS:
        response = http.get(f"{prefix}/page/{name}")
        assert response.status_code == 200
        expected = MEDIA_TYPES[name.rsplit(".", 1)[1]]
        assert response.headers["content-type"].partition(";")[0] == expected
        assert response.content == (FOLDER / name).read_bytes()


def test_the_page_finds_its_files_below_any_prefix(http, prefix):
    """Links are relative to the application's root, which ends with a slash."""
    redirected = http.get(prefix or "/", follow_redirects=False)
    if prefix:
        assert redirected.headers["location"].endswith(f"{prefix}/")
    asked = [link for link in links() if not link.startswith("#") and link != "metrics"]
    assert {"page/main.js", "page/style.css", "page/icon.svg"} <= set(asked)
    for link in asked:
        assert http.get(f"{prefix}/{link}").status_code == 200, link


@pytest.mark.parametrize(
    "name",
    ["no-such.js", "", INDEX, "uplot/LICENSE", "../gateway.py", "%2e%2e/auth.py"],
)
def test_nothing_else_is_sent(http, prefix, name):
    response = http.get(f"{prefix}/page/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "NotFoundError"


def test_a_strict_policy_goes_with_every_file(http, prefix):
    for path in ("/", *(f"/page/{name}" for name in ASSETS)):
        headers = http.get(prefix + path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) == {"'self'", "'none'"}
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_a_file_is_told_so(http, prefix):
    first = http.get(f"{prefix}/page/main.js")
    etags = {http.get(f"{prefix}/page/{name}").headers["etag"] for name in ASSETS}
    assert len(etags) == len(ASSETS)
    again = http.get(f"{prefix}/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = http.get(f"{prefix}/page/main.js", headers={"if-none-match": '"another"'})
    assert other.content == first.content


def test_the_page_has_no_script_or_style_of_its_own():
    """The policy would refuse them, and the page would miss them."""
    for tag, given in tags():
        assert tag not in ("style", "base", "iframe", "object")
        assert tag != "script" or given.get("src")
        assert not [name for name in given if name == "style" or name.startswith("on")], given


def test_no_data_becomes_markup():
    for name in SCRIPTS:
        if not name.startswith(VENDORED):
            assert not MARKUP.findall((FOLDER / name).read_text("utf-8")), name


def test_nothing_names_another_origin():
    for name in OWN:
        text = (FOLDER / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.findall(r"(?:https?:)?//[a-z0-9]", text), name
    assert all(not link.startswith("/") for link in links())


def test_every_import_leads_to_a_file_and_every_file_is_used():
    used = set(links())
    for name in SCRIPTS:
        text = (FOLDER / name).read_text("utf-8")
        for target in re.findall(r'^(?:import|\} from|import .*from) .*"(\.[^"]+)";$', text, re.M):
            path = normpath(join(dirname(name), target))
            assert path in ASSETS, (name, target)
            used.add(f"page/{path}")
    assert used >= {f"page/{name}" for name in ASSETS}


def test_every_element_that_a_script_looks_up_is_there():
    ids = [given["id"] for _, given in tags() if given.get("id")]
    assert len(ids) == len(set(ids))
    for name in OWN:
        for wanted in re.findall(r'byId\("([^"]+)"\)', (FOLDER / name).read_text("utf-8")):
            assert wanted in ids, (name, wanted)


def test_our_files_fit_on_few_screens():
    for name in OWN:
        assert len((FOLDER / name).read_text("utf-8").splitlines()) < MAX_LINES, name


def test_the_vendored_library_says_what_it_is():
    folder = FOLDER / "uplot"
    (version,) = re.findall(r"\(v([\d.]+)\)", (folder / "uPlot.esm.js").read_text("utf-8"))
    assert f"uPlot {version}" in (folder / "README.md").read_text("utf-8")
    assert "MIT License" in (folder / "LICENSE").read_text("utf-8")


def test_a_wheel_carries_the_page(tmp_path):
    (wheel,) = WheelBuilder(str(REPOSITORY)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("deployments/page/")}
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    assert packed == {f"deployments/{path.relative_to(FOLDER.parent).as_posix()}" for path in files}
    assert "deployments/page/uplot/LICENSE" in packed
