"""Who may ask: tokens, addresses, and pages of other names."""

from pathlib import Path

import pytest

from automl.standalone.serving.errors import ServeError
from automl.standalone.serving.settings import settings_of
from tests.automl.serving.conftest import TOKEN
from tests.support.served import Server

GOOD = {"age": 39, "city": "Oslo", "score": None}
ROW = {"row": [1.0, 2.0]}


@pytest.mark.parametrize("path", ["/metrics", "/predict", "/predict/batch", "/nothing", "/docs/", "/openapi.json/"])
def test_without_the_token_nothing_is_told(guarded_server: Server, path: str) -> None:
    content = {"/predict": ROW, "/predict/batch": {"rows": [ROW["row"]]}}.get(path)
    for token in ("", "wrong", TOKEN + "0", TOKEN[:-1]):
        reply = guarded_server.ask(path, content, token=token)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert reply.body == {"detail": "header Authorization: no valid token. Send Bearer TOKEN"}
    assert guarded_server.ask(path, content, token=TOKEN).status in {200, 307, 404}


def test_the_page_and_a_document_without_the_model_need_no_token(guarded_server: Server) -> None:
    assert guarded_server.ask("/").headers["location"] == "docs"
    assert guarded_server.ask("/health").body["model_loaded"] is True
    page = guarded_server.ask("/docs")
    assert (page.status, "Authorize" in page.body) == (200, True)
    told, known = guarded_server.ask("/openapi.json").body, guarded_server.ask("/openapi.json", token=TOKEN).body
    assert told["info"]["title"] == "A trained model"
    assert told["security"] == known["security"] == [{"token": []}]
    assert told["components"]["schemas"]["Row"] == {"description": "A row as the model takes it."}
    assert known["components"]["schemas"]["Row"]["type"] == "array"
    assert "example" not in told["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]


@pytest.mark.parametrize(
    ("status", "values"),
    [
        (401, (f"Basic {TOKEN}", f"Bearer{TOKEN}", TOKEN, "Bearer", "Bearer \xe9")),
        (200, (f"bearer {TOKEN}", f"Bearer  {TOKEN} ")),
    ],
)
def test_a_token_comes_in_one_header_whose_scheme_may_be_written_in_any_case(guarded_server, status, values):
    for value in values:
        assert guarded_server.ask("/predict", ROW, Authorization=value).status == status, value


@pytest.mark.large
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example:1", "[::2]:80", "1"]
)
def test_a_page_whose_name_leads_here_cannot_ask(server: Server, host: str) -> None:
    for path, content in (("/predict", {"row": GOOD}), ("/health", None), ("/openapi.json", None)):
        reply = server.ask(path, content, Host=host)
        assert reply.status == 403
        assert reply.body["detail"].startswith("header Host: found another name")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "127.5.5.5", "[::1]", "[::1]:8000"])
def test_this_machines_own_names_can(server: Server, host: str) -> None:
    assert server.ask("/predict", {"row": GOOD}, Host=host).status == 200


def test_with_a_token_any_name_will_do(guarded_server: Server) -> None:
    assert guarded_server.ask("/predict", ROW, token=TOKEN, Host="models.example").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "models.example", "127.0.0.1.example"])
def test_others_reach_a_server_only_with_a_token(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOML_SERVE_TOKEN", raising=False)
    with pytest.raises(ServeError, match=r"^--host .* needs a token. Use 127\.0\.0\.1 or another"):
        settings_of({"host": host})
    (tmp_path / "token").write_text(TOKEN)
    assert settings_of({"host": host, "token_file": str(tmp_path / "token")}).host == host
    monkeypatch.setenv("AUTOML_SERVE_TOKEN", TOKEN)
    assert not settings_of({"host": host}).is_open


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", ""])
def test_this_machine_needs_none(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOML_SERVE_TOKEN", raising=False)
    assert settings_of({"host": host}).is_open


@pytest.mark.parametrize("token", ["", "short", "fifteen-letters", "with a space in between", "mit-ümlaut-und-lang"])
def test_a_token_that_can_be_guessed_is_refused(token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(token)
    allowed = "allowed: at least 16 printable ASCII characters without spaces"
    with pytest.raises(ServeError, match=f"^--token-file: found a token of {len(token)} characters, {allowed}"):
        settings_of({"token_file": str(tmp_path / "token")})
    if token:  # an empty variable is one that is not set
        monkeypatch.setenv("AUTOML_SERVE_TOKEN", token)
        with pytest.raises(ServeError, match=r"^AUTOML_SERVE_TOKEN: found a token of"):
            settings_of({})


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOML_SERVE_TOKEN", TOKEN)
    found = settings_of({})
    assert TOKEN not in repr(found)
    assert TOKEN not in found.model_dump_json()
    (tmp_path / "binary").write_bytes(b"\xff" * 40)
    with pytest.raises(ServeError, match="cannot be read: it is no text"):
        settings_of({"token_file": str(tmp_path / "binary")})
    with pytest.raises(ServeError, match="cannot be read: No such file"):
        settings_of({"token_file": str(tmp_path / "none")})


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1.evil.example"]
)
def test_a_page_of_another_site_gets_no_answer_without_a_token(server: Server, origin: str) -> None:
    reply = server.ask("/predict", {"row": GOOD}, Origin=origin)
    assert reply.status == 403
    assert reply.body["detail"].startswith("header Origin: found another site")


def test_the_servers_own_pages_and_clients_with_a_token_are_answered(server: Server, guarded_server: Server) -> None:
    own = f"127.0.0.1:{server.port}"
    assert server.ask("/predict", {"row": GOOD}, Host=own, Origin=f"http://{own}").status == 200
    assert guarded_server.ask("/predict", ROW, token=TOKEN, Origin="http://other.example").status == 200
