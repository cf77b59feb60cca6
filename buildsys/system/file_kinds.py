"""What a file is that its reader refuses."""

import zipfile
from pathlib import Path

_HEAD_BYTES = 512
_WEB_PAGES = (b"<!doctype html", b"<html", b"<?xml")


def describe_file(path: Path) -> tuple[str, str]:
    """Name a common mistake about a file, with its remedy; empty texts without any."""
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if not head:
        return "is empty", "copy or download it again"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself", "run `git lfs pull`"
    if head.lstrip().lower().startswith(_WEB_PAGES):
        return "is a web page", "download the file itself, perhaps after logging in"
    if not head.startswith(b"PK"):
        return "", ""
    if not zipfile.is_zipfile(path):
        return "is the beginning of a file", "copy or download all of it"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if not names:
        return "is an empty archive", "copy or download it again"
    if any(name.endswith("/constants.pkl") for name in names):
        return "is a TorchScript archive", "save torch.jit.load(FILE).state_dict() with torch.save"
    if all(name.endswith(".npy") for name in names):
        return "is an archive of numpy", "save a state dict: torch.save(model.state_dict(), FILE)"
    return "", ""
