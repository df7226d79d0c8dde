"""Files of the page: our own, and BokehJS from the package that is installed here."""

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

FILES = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser lets the page do. BokehJS sets styles of its elements; no script is inline."""

SHORT, LONG = "no-cache", "public, max-age=31536000, immutable"
"""How long a browser keeps our files, and those of one version of BokehJS."""

TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


class File(NamedTuple):
    """A file of the page."""

    content: Path | str
    kind: str
    kept: str
    """How long a browser keeps it."""


def page_files(folder: Path = FILES) -> dict[str, File]:
    """Files by their path on the web.

    Those of BokehJS are there under its version too, which the page is made to name: a browser
    keeps them until there is another.
    """
    found = {
        f"/{path.name}": File(path, TYPES[path.suffix], SHORT)
        for path in folder.glob("*.*")
        if path.suffix in TYPES
    }
    bokeh, version = importlib.util.find_spec("bokeh"), "none"
    if bokeh is not None and bokeh.submodule_search_locations:
        version = metadata.version("bokeh")
        scripts = Path(bokeh.submodule_search_locations[0], "server", "static", "js")
        for path in scripts.glob("bokeh*.min.js"):
            for where, kept in ((f"bokeh/{version}", LONG), ("bokeh", SHORT)):
                found[f"/{where}/{path.name}"] = File(path, TYPES[".js"], kept)
    index = folder / "index.html"
    if index.exists():
        text = index.read_text(encoding="utf-8").replace('"bokeh/', f'"bokeh/{version}/')
        found["/"] = File(text, "text/html", SHORT)
    return found


def page_routes(files: Mapping[str, File]) -> tuple[APIRouter, Sequence[str]]:
    """Routes of files, and their paths."""
    router = APIRouter()

    def serve(path: str, file: File) -> None:
        headers = {"cache-control": file.kept, "content-security-policy": POLICY}

        @router.get(path)
        async def send() -> Response:
            if isinstance(file.content, str):
                return Response(file.content, headers=headers, media_type=file.kind)
            return FileResponse(file.content, headers=headers, media_type=file.kind)

    for path, file in files.items():
        serve(path, file)
    return router, list(files)
