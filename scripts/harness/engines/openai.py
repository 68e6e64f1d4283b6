"""A server somebody else started, with an OpenAI API: it is attached to, never started and never ended."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.harness import tls
from scripts.harness.addresses import plain_url
from scripts.harness.engines import http, openai_api, refusals
from scripts.harness.engines.base import Command, Failure, PromptForm
from scripts.harness.engines.http import Answer
from scripts.harness.errors import SweepError
from scripts.harness.load.secrets import checked_key, quoted, secrets_of

OTHERS = ("command", "binary", "arguments", "environment", "kv_cache_memory", "port")
ASK_TIMEOUT_S = 10.0
"""For the list of models: a server that is busy with others answers late."""
PROBE_TIMEOUT_S = 120.0
"""One token from a server that may be busy with somebody else's requests."""
PROBE_TOKENS = 8
PAGE_TIMEOUT_S = 5.0
STARTING = (502, 503, 504)
"""Statuses of a server, or of the proxy before it, that is not up yet."""
NAMES_SHOWN = 20
ENDS = ("/chat/completions", "/completions", "/models")
LEFT_OUT = {
    "ignore_eos": (
        "set workload.ignore_eos: false to leave it out; answers may then be shorter than workload.output_tokens, and "
        "the report says so"
    ),
    "temperature": (
        "set workload.leave_out: [temperature] to leave it out; the server's own default holds then, and the report "
        "says so"
    ),
    "stream_options": (
        "set workload.leave_out: [stream_options] to leave it out; tokens are then counted from the pieces of an answer"
    ),
}


class OpenaiEngine:
    """See ``base.Engine``. Settings of ``server``: url, model, api_key_env, tls_ca, tls_verify, log, version."""

    name = "openai"
    attaches_only = True

    def resolve(self, server: Mapping[str, Any], workload: Mapping[str, Any], levels: Sequence[int]) -> dict[str, Any]:
        """Check the address, the certificates and that the key's variable is set; of the key itself nothing is kept.

        ``api`` holds the paths the API may lie at below ``url``, the likeliest first.
        """
        url, api = _address(server.get("url"))
        for key in OTHERS:
            if server.get(key):
                raise SweepError(f"server.{key} is for servers the pipeline starts; with engine openai, leave it out")
        variable = server.get("api_key_env")
        if variable is not None:
            _check_key(str(variable))
        log = server.get("log")
        if log is not None and not Path(str(log)).expanduser().is_file():
            raise SweepError(f"server.log: {log} is not there or is not a file; correct it, or leave it out")
        return {
            "url": url,
            "api": api,
            "model": server.get("model"),
            "api_key_env": variable,
            "log": None if log is None else str(Path(str(log)).expanduser()),
            "version": server.get("version"),
            **tls.check(server, url),
            "arguments": {},
            "environment": {},
        }

    def command(self, resolved: Mapping[str, Any], host: str, port: int) -> Command:
        """There is no command: the server is somebody else's."""
        raise SweepError(f"the server at {resolved['url']} is not started by the pipeline")

    def uses_gpu(self, resolved: Mapping[str, Any]) -> bool:
        """Nothing is started."""
        return False  # it runs already

    def base_url(self, resolved: Mapping[str, Any], host: str, port: int) -> str:
        """Return the configured address."""
        return str(resolved["url"])

    def ready(self, base_url: str, resolved: Mapping[str, Any]) -> str | None:
        """Return the configured model if the server lists it, or the only one it lists.

        Raises SweepError at once when nobody answers, the key is refused or several models are listed and none is
        configured: waiting would not help.
        """
        wanted = resolved.get("model")
        answers: dict[str, Answer] = {}
        for api in _apis(resolved):
            url = f"{base_url}{api}/models"
            answers[url] = answer = self._get(url, resolved)
            names = [quoted(name, self._secrets(resolved)) for name in openai_api.models(answer)]
            if names:
                return _chosen(names, None if wanted is None else str(wanted), base_url)
            if answer.status is None:
                self._refuse(answer, f"GET {url}", base_url, resolved)
        if any(answer.status in STARTING for answer in answers.values()):
            return None
        for url, answer in answers.items():
            self._refuse(answer, f"GET {url}", base_url, resolved)
        if wanted is not None:
            return str(wanted)
        asked = " and ".join(f"{url} ({_short(answer)})" for url, answer in answers.items())
        raise SweepError(
            f"the server lists no model: asked {asked}; give the path the API lies at in server.url, such as "
            f"{_origin(base_url)}/api/v3, or name the model in server.model"
        )

    def explain_failure(self, log_text: str, returncode: int | None) -> Failure:
        """Read the reason from the log where there is one; otherwise only the fact is known."""
        if log_text.strip():
            from scripts.harness import startup_log

            return Failure.of(startup_log.explain(log_text, returncode, "vllm"))
        return Failure(
            "server_gone", "the server stopped answering", "look at the server's own log; name it in server.log"
        )

    def read_startup_log(self, log_text: str) -> dict[str, Any]:
        """See ``scripts.harness.startup_log``; which server wrote the log is found out there."""
        from scripts.harness import startup_log

        found: dict[str, Any] = startup_log.read(log_text, engine=None)
        return found

    def survey(
        self,
        base_url: str,
        resolved: Mapping[str, Any],
        workload: Mapping[str, Any],
        model: str,
        say: Callable[[str], None],
    ) -> dict[str, Any]:
        """Find out where the API and the counters lie and what the server takes of a request; see ``base.Engine``.

        Sends requests of one token until one is taken. Raises SweepError, with what to change, for a refusal that a
        setting has to answer.
        """
        if resolved.get("model") is None:
            say(f"the server at {base_url} serves one model, {model}: it is measured")
        with http.Session(self.headers(resolved), PROBE_TIMEOUT_S, tls.of(resolved), 1 << 20) as session:
            api = self._find_api(session, base_url, resolved, workload, model)
            tried = self._try(session, f"{base_url}{openai_api.endpoint(workload, api)}", resolved, workload, model)
        found: dict[str, Any] = {"api": [api], "prompt_form": _form(workload)}
        if "token_ids" in tried.refused:
            found["prompt_form"] = "text"
            counted = "the server's usage says how long they are"
            if tried.taken is None or '"prompt_tokens"' not in tried.taken.text:
                counted = "how long they are is not known, since the server sends no usage"
            say(
                f"the server takes no token ids as prompt ({self._met(tried.refused['token_ids'], resolved)}): prompts "
                f"are text of {workload['input_tokens']} words, and {counted}"
            )
        if resolved.get("tls_verify") is False:
            say(f"the certificate of {base_url} is not checked (server.tls_verify: false): the report says so")
        return found | self._find_counters(base_url, resolved, say)

    def endpoint(self, workload: Mapping[str, Any], resolved: Mapping[str, Any] | None = None) -> str:
        """Return the path of the API, below ``base_url``."""
        return openai_api.endpoint(workload, _apis(resolved or {})[0])

    def request_body(self, workload: Mapping[str, Any], model: str, prompt: Sequence[int] | str) -> dict[str, Any]:
        """Return the body. ``ignore_eos`` is the one field outside the API: without it no output has an exact length;
        vLLM, SGLang and llama.cpp know it."""
        return openai_api.as_asked(workload, {**openai_api.body(workload, model, prompt), "ignore_eos": True})

    def headers(self, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return the bearer header from the environment, read anew each time."""
        variable = resolved.get("api_key_env")
        return {} if variable is None else openai_api.bearer(str(variable))

    def scrape_targets(self, base_url: str, resolved: Mapping[str, Any]) -> dict[str, str]:
        """Return /metrics; where the server has none, every scrape says so and the counters stay unknown."""
        return {"metrics": str(resolved.get("metrics") or f"{base_url}/metrics")}

    def version(self, base_url: str, log_text: str, resolved: Mapping[str, Any] | None = None) -> str | None:
        """Return what /version says (vLLM has it), else what is configured."""
        resolved = resolved or {}
        for root in _roots(base_url):
            said = openai_api.version(root, self.headers(resolved), tls.of(resolved))
            if said is not None:
                return quoted(said, self._secrets(resolved), 80)
        return None if resolved.get("version") is None else str(resolved["version"])

    def prompt_form(
        self, base_url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> PromptForm:
        """Return what the survey found the server to take: ``token_ids`` or ``text``."""
        return "text" if resolved.get("prompt_form") == "text" else _form(workload)

    # Questions

    def _get(self, url: str, resolved: Mapping[str, Any]) -> Answer:
        return http.ask(url, self.headers(resolved), ASK_TIMEOUT_S, tls.of(resolved))

    def _secrets(self, resolved: Mapping[str, Any]) -> tuple[str, ...]:
        return secrets_of(self.headers(resolved))

    def _met(self, refusal: refusals.Refusal, resolved: Mapping[str, Any]) -> str:
        """Return status and words of a refusal for a sentence."""
        words = quoted(refusal.words, self._secrets(resolved))
        return f"status {refusal.status}: “{words}”" if words else f"status {refusal.status}"

    def _refuse(self, answer: Answer, asked: str, base_url: str, resolved: Mapping[str, Any]) -> None:
        """Raise SweepError for an answer that ends the matter, whatever was asked: one sentence for each."""
        if answer.problem == "refused":
            raise SweepError(f"no server answers at {base_url} ({answer.error}); start it, or correct server.url")
        if answer.problem == "tls":
            raise SweepError(str(answer.error))
        if answer.problem == "timeout":
            raise SweepError(
                f"the server at {base_url} takes the connection and does not answer {asked}: {answer.error}; see what "
                "it is doing, then run again"
            )
        if answer.status is None or answer.problem is not None:
            raise SweepError(
                f"the server at {base_url} does not answer {asked} as it should: {answer.error}; see its log"
            )
        words = refusals.words_of(answer.text) or ("" if "<" in answer.text[:200] else answer.text)
        said = f"status {answer.status}" + (f": “{text}”" if (text := quoted(words, self._secrets(resolved))) else "")
        if answer.status in (401, 403):
            variable = resolved.get("api_key_env")
            change = (
                "put the key in an environment variable and set server.api_key_env to its name"
                if variable is None
                else f"check the key in {variable}"
            )
            raise SweepError(f"the server at {base_url} refuses the request ({said}); {change}")
        if 300 <= answer.status < 400:
            where = "" if answer.location is None else f" to {answer.location}"
            raise SweepError(
                f"the server at {base_url} redirects {asked}{where} (status {answer.status}), and requests are not "
                "redirected; give the address it leads to in server.url"
            )
        if answer.status == 413:
            raise SweepError(
                f"the server at {base_url}, or a proxy before it, calls the request too large ({said}); raise its "
                "limit on the size of a request"
            )
        if answer.status == 429:
            raise SweepError(
                f"the server at {base_url} limits how often it may be asked ({said}); have the limit lifted for this "
                "key, since a load cannot be measured below it"
            )
        if answer.status in STARTING:
            raise SweepError(
                f"the server at {base_url} takes no requests now ({said}); run again once it does, or see its log"
            )
        if answer.status >= 500 and answer.status not in refusals.REFUSALS:
            raise SweepError(f"the server at {base_url} fails at {asked} ({said}); its own log says why")

    def _find_api(
        self,
        session: http.Session,
        base_url: str,
        resolved: Mapping[str, Any],
        workload: Mapping[str, Any],
        model: str,
    ) -> str:
        """Return the path of the API below ``base_url``: where models are listed, else where a request is taken."""
        apis = _apis(resolved)
        if len(apis) == 1:
            return apis[0]
        for api in apis:
            if openai_api.models(self._get(f"{base_url}{api}/models", resolved)):
                return api
        answers = {}
        for api in apis:
            url = f"{base_url}{openai_api.endpoint(workload, api)}"
            answers[url] = answer = session.post(url, self._probe(workload, model, frozenset()))
            if answer.status not in (404, 405) or _names_model(answer, model):
                return api
        asked = " and ".join(f"POST {url} ({_short(answer)})" for url, answer in answers.items())
        raise SweepError(
            f"the server has no API where it was asked: {asked}; give the path its API lies at in server.url, such as "
            f"{_origin(base_url)}/api/v3, or ask another one with workload.endpoint: {_other(workload)}"
        )

    def _probe(self, workload: Mapping[str, Any], model: str, without: frozenset[str]) -> dict[str, Any]:
        """Return the request as the load sends it, for one token and with a short prompt."""
        prompt: Sequence[int] | str
        if _form(workload) == "text" or "token_ids" in without:
            prompt = "one two three four five six seven eight"
        else:
            first = int(workload["vocabulary"][0]) if workload.get("vocabulary") else 1000
            prompt = [first + step for step in range(PROBE_TOKENS)]
        body = self.request_body({**workload, "output_tokens": 1}, model, prompt)
        return {key: value for key, value in body.items() if key not in without}

    def _try(
        self, session: http.Session, url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> refusals.Tried:
        """Try out what the server takes. Raises SweepError where a setting, a path or the server has to change."""
        base_url = str(resolved["url"])

        def send(without: frozenset[refusals.Part]) -> Answer:
            answer = session.post(url, self._probe(workload, model, without))
            if answer.problem == "size":  # it goes on and on: taken, at any rate
                answer = Answer(200, "")
            self._refuse(answer, f"POST {url}", base_url, resolved)
            if answer.status in (404, 405):
                raise SweepError(self._no_path(answer, url, resolved, workload, model))
            return answer

        whole = self._probe(workload, model, frozenset())
        parts: list[refusals.Part] = [part for part in refusals.PARTS if part in whole]
        if isinstance(whole.get("prompt"), list):
            parts.insert(0, "token_ids")
        tried = refusals.find(send, parts)
        if tried.left is not None:
            named = [word for word in tried.left.named if word in whole and word not in ("prompt", "messages")]
            about = f", naming the field {named[0]}" if named else ""
            fails = tried.left.status >= 500
            verb = "fails at every request" if fails else f"refuses every request{about}"
            change = (
                "its own log says why"
                if fails or not tried.left.words
                else "correct what it names, in the round's file or in the server"
            )
            raise SweepError(f"the server at {base_url} {verb} ({self._met(tried.left, resolved)}); {change}")
        for part, refusal in tried.refused.items():
            if part != "token_ids":
                raise SweepError(
                    f"the server at {base_url} does not take the field {part} ({self._met(refusal, resolved)}); "
                    f"{LEFT_OUT[part]}"
                )
        return tried

    def _no_path(
        self, answer: Answer, url: str, resolved: Mapping[str, Any], workload: Mapping[str, Any], model: str
    ) -> str:
        words = quoted(refusals.words_of(answer.text) or "", self._secrets(resolved))
        said = f"status {answer.status}" + (f": “{words}”" if words else "")
        if _names_model(answer, model):
            return f"the server at {resolved['url']} does not know the model {model} ({said}); correct server.model"
        return (
            f"the server has nothing to ask at {url} ({said}); give the path its API lies at in server.url, or ask "
            f"another one with workload.endpoint: {_other(workload)}"
        )

    def _find_counters(self, base_url: str, resolved: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
        """Return where the counters lie: the first page of those they may be at; the likeliest where there is none."""
        candidates = [f"{root}/metrics" for root in _roots(base_url)]
        first: Answer | None = None
        with http.Session(self.headers(resolved), PAGE_TIMEOUT_S, tls.of(resolved), diagnose=False) as session:
            for url in candidates:
                answer = session.get(url, follow=True)
                if http.page_problem(answer) is None:
                    return {"metrics": url}
                first = answer if first is None else first
                if answer.problem is not None:
                    return self._no_counters(url, answer, say)
        assert first is not None
        return self._no_counters(candidates[0], first, say)

    def _no_counters(self, url: str, answer: Answer, say: Callable[[str], None]) -> dict[str, Any]:
        problem = http.page_problem(answer)
        assert problem is not None
        say(f"the server's counters are not known: {url}: {problem['words']}")
        return {"metrics": url}


def _address(url: Any) -> tuple[str, list[str]]:
    """Return the address without what follows from it, and the paths the API may lie at below it."""
    if url is None:
        raise SweepError("server.url is missing; give the address of the running server, such as http://127.0.0.1:8000")
    text = str(url).strip()
    shown = plain_url(text)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise SweepError(f"server.url: expected http://HOST:PORT, found {shown!r}; correct it") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SweepError(
            f"server.url: expected http://HOST:PORT, found {parts.scheme or 'no scheme'!r} in front; correct it"
        )
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise SweepError(
            "server.url holds a user name, password, query or fragment, and it is stored with every measurement; take "
            "them out and put the key in an environment variable named in server.api_key_env"
        )
    if port == 0 or re.search(r"[\s\\]", text):
        raise SweepError(f"server.url: expected http://HOST:PORT, found {shown!r}; correct it")
    plain = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    for end in ENDS:
        plain = plain.removesuffix(end)
    if plain.endswith("/v1"):
        return plain.removesuffix("/v1"), ["/v1"]
    return plain, ["/v1", ""] if not urlsplit(plain).path else ["", "/v1"]


def _check_key(variable: str) -> None:
    """Raise SweepError unless a variable holds a key that can be sent. What looks like a key itself is not repeated."""
    key = os.environ.get(variable)
    if not key or not key.strip():
        shown = variable if re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", variable) else "a variable (not shown here)"
        raise SweepError(
            f"server.api_key_env names {shown}, which is not set; export it in the shell that starts the run"
        )
    checked_key(key, variable)


def _apis(resolved: Mapping[str, Any]) -> list[str]:
    """Return the paths the API may lie at; records of older measurements know /v1 only."""
    return [str(api) for api in resolved.get("api") or ["/v1"]]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _roots(base_url: str) -> list[str]:
    """Return where pages beside the API may lie: at the address itself, without a version at its end, at the host."""
    return list(dict.fromkeys((base_url, re.sub(r"/v\d+[a-z0-9]*$", "", base_url), _origin(base_url))))


def _form(workload: Mapping[str, Any]) -> PromptForm:
    return "text" if workload.get("prompt") == "text" or workload.get("endpoint") == "chat" else "token_ids"


def _other(workload: Mapping[str, Any]) -> str:
    return "completions" if workload.get("endpoint") == "chat" else "chat"


def _names_model(answer: Answer, model: str) -> bool:
    words = refusals.words_of(answer.text) or ""
    return answer.status == 404 and (model in words or "model_not_found" in answer.text)


def _short(answer: Answer) -> str:
    return f"status {answer.status}" if answer.status is not None else str(answer.error)


def _chosen(names: Sequence[str], wanted: str | None, base_url: str) -> str:
    """Return the model to measure. Raises SweepError where it is not served, or none of several is named."""
    shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else "")
    if wanted is not None:
        if wanted not in names:
            raise SweepError(f"the server at {base_url} serves {shown}, not {wanted}; correct server.model")
        return wanted
    if len(set(names)) > 1:
        raise SweepError(
            f"the server at {base_url} serves several models: {shown}; name the one to measure in server.model"
        )
    return names[0]
