"""The body of an error: one line that says what came, what was wanted and what to do, in the shape the API's clients read.

The explorer's and LibreTranslate's clients read `{"error": "…"}`; OpenAI's read `{"error": {"message": …, "type": …}}`.
"""

from regard.data.terminal import printable
from regard.web.routes import Json

__all__ = ["error_body", "one_line"]

OPENAI = "/v1/"  # addresses whose clients read OpenAI's errors
INTERNAL = "internal error; see the server's log"
MAX_CHARACTERS = 500  # of a message: it may quote what was sent


def error_body(path: str, status: int, message: str, *, param: str | None = None, expired: bool = False) -> Json:
    """The JSON of an error, by the address it answers."""
    if not path.startswith(OPENAI):
        return {"error": message} | ({"expired": True} if expired else {})
    kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def one_line(message: object) -> str:
    """A message on one line without control characters, shortened if it quotes a long text."""
    text = printable(message, keep="")
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
