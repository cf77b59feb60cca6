"""A text cache in memory."""


class Texts(dict[str, str]):
    """A text cache in memory."""

    def set(self, name: str, text: str, /) -> None:
        self[name] = text
