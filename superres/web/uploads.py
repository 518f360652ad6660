"""Uploads, stored in folders of the visitors who sent them; an upload that ends early leaves no file."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from gradio.route_utils import GradioMultiPartParser, GradioUploadFile
from gradio.routes import file_upload_statuses
from gradio_client.utils import strip_invalid_filename_characters  # type: ignore[import-untyped]
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from superres.web.files import Workspace
from superres.web.photos import file_name
from superres.web.visitors import identities_of

UPLOAD_PATH = "/gradio_api/upload"
"""Path to which Gradio's page and clients send files; Gradio's own handler would share equal files between visitors."""
MAX_FILE_BYTES = 10 * 2**20
MAX_REQUEST_FILES = 1000


def receive_uploads(workspace: Workspace) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of UPLOAD_PATH, which stores files in `workspace` and responds with their paths."""

    async def receive(request: Request) -> Response:
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            return PlainTextResponse("send files as multipart/form-data", 400)
        visitor, upload_id = identities_of(request.scope), request.query_params.get("upload_id")
        unfinished = workspace.new_folder(visitor)
        try:
            files = await _parse(request, unfinished, upload_id)
            return JSONResponse([_move(file, workspace.new_folder(visitor)) for file in files])
        except (MultiPartException, ClientDisconnect) as error:
            if upload_id:
                file_upload_statuses.stop_tracking(upload_id)
            reason = str(getattr(error, "message", "the upload ended early"))
            return PlainTextResponse(reason, 413 if "exceeded maximum allowed size" in reason else 400)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    return receive


async def _parse(request: Request, folder: Path, upload_id: str | None) -> list[GradioUploadFile]:
    """Receive the files of a request into `folder`, and report the progress to the page."""
    if upload_id:
        file_upload_statuses.track(upload_id)
    parser = GradioMultiPartParser(
        request.headers, request.stream(), max_files=MAX_REQUEST_FILES, upload_dir=folder, upload_id=upload_id,
        upload_progress=file_upload_statuses if upload_id else None, max_file_size=MAX_FILE_BYTES)
    form = await parser.parse()
    return [file for file in form.getlist("files") if isinstance(file, GradioUploadFile)]


def _move(file: GradioUploadFile, folder: Path) -> str:
    """Move an upload into `folder`, and return its new path."""
    file.file.close()
    name = strip_invalid_filename_characters(file_name(file.filename or ""))
    return str(Path(file.file.name).rename(folder / (name if name.strip(".") else "unnamed")))
