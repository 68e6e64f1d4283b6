"""From bytes and their stamps to token arrivals: server-sent events and what each kind of frame means. Pure.

The rules (docs/fidelity.md has them as a table):

* A frame is one event: the ``data`` lines up to a blank line. Its stamp is that of the read that completed its last
  ``data`` line, so the result does not depend on how TCP cut the bytes. Comments and other fields carry nothing.
* A frame **carries a token** when it has text, reasoning text, a tool call's or refusal's text, token ids, or log
  probabilities of tokens; or, where the server keeps a running count in ``usage``, when that count grows. Role-only,
  empty and usage-only frames carry none: they never start TTFT and never make an ITL sample.
* **How many tokens**: the last ``usage`` decides. Otherwise token ids or log probabilities, otherwise frames. Where
  usage and frames differ, the tokens are spread over the frames that carry text (empty frames before one count for
  it).
* ``[DONE]`` or a finish reason ends an answer; a stream that ends with neither is truncated. Servers write "no reason
  yet" as null, as an empty string or as the word null: none of them is a reason.
* A ``usage`` that says 0 tokens although frames carried text says nothing; frames are counted then.
* **Tokens nobody saw** (``Reading.unseen``): reasoning that is counted and not sent, several choices in one stream,
  everything in one arrival, bursts of many frames. The answer is whole, and no speed per token can be had from it.
* An error object inside the stream, even as the first frame, fails the request with the server's words.
"""

import itertools
import json
from array import array
from dataclasses import dataclass
from typing import Any

try:
    import orjson

    _loads: Any = orjson.loads
except ImportError:  # slower, same results
    _loads = json.loads

MESSAGE_LENGTH = 2000
TRANSPORT_FAILURES = frozenset(
    {
        "connect",
        "timeout_connect",
        "timeout_first_token",
        "timeout_between_tokens",
        "timeout_total",
        "interrupted",
    }
)
_FAILED_FINISH = frozenset({"error", "abort", "aborted", "cancelled"})
_NO_REASON = frozenset({"", "null", "none", "undefined"})
_NO_USAGE = -1
BURST_FRAMES = 4.0
"""Frames of one answer that share an arrival, on average, above which it came in bursts. Servers that pack put up to
four tokens into one write; a proxy that buffers sends what a fixed time or a full buffer holds, which is far more."""


@dataclass(frozen=True)
class Frame:
    """A frame that carries tokens: when it arrived, how many, and how far behind the reader may have been (ns)."""

    arrival_ns: int
    tokens: int
    behind_ns: int


@dataclass(frozen=True)
class Reading:
    """What one answer was. ``error_kind`` is None for one that succeeded."""

    error_kind: str | None
    error_message: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    tokens_source: str | None
    frames: tuple[Frame, ...]
    text: str
    reasoning: str
    response_id: str | None
    running_usage: bool
    """The server kept a count of tokens in its frames, and arrivals were read from its growth."""
    unseen: str | None = None
    """Why its tokens were not seen one by one: hidden_reasoning, several_choices, one_arrival, bursts; else None."""
    usage_zero: bool = False
    """The server's usage said 0 output tokens although tokens came."""


class StreamParser:
    """Reads the body of one answer, piece by piece.

    >>> parser = StreamParser()
    >>> parser.feed(b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\\n\\n', 100)
    >>> parser.finish("complete", 200).output_tokens
    1
    """

    def __init__(self) -> None:
        self._line = b""
        self._carriage = False
        self._first_line = True
        self._data: list[bytes] = []
        self._data_at = self._fed = (0, 0)
        self._event = b""
        self.frames_seen = 0
        self.done = False
        self.finish_reason: str | None = None
        self.response_id: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self._choices: set[int] = set()
        self.problem: tuple[str, str] | None = None
        """(error kind, words) of the first thing that went wrong."""
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._raw: list[bytes] = []
        self._raw_size = 0
        # One entry a frame that might carry tokens: stamp, behind, has text, counted tokens, running usage, and how
        # many empty frames came right before it.
        self._stamps, self._behinds = array("q"), array("q")
        self._texted, self._counted, self._usages = array("b"), array("i"), array("i")
        self._held_before = array("i")
        self._held = 0

    @property
    def token_seen(self) -> bool:
        """A frame with text or token ids has come."""
        return any(self._texted) or any(self._counted)

    def feed(self, payload: bytes, arrival_ns: int, behind_ns: int = 0) -> None:
        """Take the next bytes of the body, which arrived at ``arrival_ns``."""
        if not payload:
            return
        self._fed = (arrival_ns, behind_ns)
        if self._raw_size < MESSAGE_LENGTH * 4 and not self.frames_seen:
            self._raw.append(payload)
            self._raw_size += len(payload)
        if b"\r" in payload or self._carriage:
            payload = self._plain_line_ends(payload)
        if b"\n" not in payload:
            self._line += payload
            return
        lines = (self._line + payload).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            if line.startswith(b"data: {") and not self._first_line:
                self._data.append(line[6:])
                self._data_at = (arrival_ns, behind_ns)
            elif not line:
                self._dispatch()
            else:
                self._take_line(line, arrival_ns, behind_ns)

    def _plain_line_ends(self, payload: bytes) -> bytes:
        """Turn CR LF and lone CR, which may be cut in two, into LF."""
        if self._carriage and payload.startswith(b"\n"):
            payload = payload[1:]
        self._carriage = payload.endswith(b"\r")
        return payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_line(self, line: bytes, arrival_ns: int, behind_ns: int) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b":") or not line:
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data.append(value)
            self._data_at = (arrival_ns, behind_ns)
        elif name == b"event":
            self._event = value

    def _dispatch(self) -> None:
        self._first_line = False
        if not self._data:
            self._event = b""
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        event, self._event, self._data = self._event, b"", []
        data = data.strip()
        if not data:
            return
        self.frames_seen += 1
        if data == b"[DONE]":
            self.done = True
            return
        if event == b"error" and not data.startswith(b"{"):
            self._fail("server_error_in_stream", data.decode(errors="replace"))
            return
        frame = _decode(data)
        if not isinstance(frame, dict):
            if self.done:
                return  # the answer is over: what comes behind it says nothing of it
            self._fail("bad_frame", f"a frame is not a JSON object: {data[:200].decode(errors='replace')}")
            return
        self._take_frame(frame, event == b"error")

    def _take_frame(self, frame: dict[str, Any], is_error: bool) -> None:
        words = error_words(frame)
        if words is not None or is_error:
            self._fail("server_error_in_stream", words if words is not None else json.dumps(frame, ensure_ascii=False))
            return
        usage = frame.get("usage")
        running = _NO_USAGE
        if isinstance(usage, dict):
            self.prompt_tokens = _count(_either(usage, "prompt_tokens", "input_tokens"), self.prompt_tokens)
            completion = _count(_either(usage, "completion_tokens", "output_tokens"), None)
            details = _either(usage, "completion_tokens_details", "output_tokens_details")
            if isinstance(details, dict):
                self.reasoning_tokens = _count(details.get("reasoning_tokens"), self.reasoning_tokens)
            if completion is not None:
                self.completion_tokens = running = completion
        if self.response_id is None and isinstance(frame.get("id"), str):
            self.response_id = frame["id"]
        choices = frame.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        text, reasoning, counted, role_only, finished = "", "", 0, False, False
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            piece, thought, tokens, role = _content(choice)
            text, reasoning, counted, role_only = text + piece, reasoning + thought, counted + tokens, role_only or role
            if (piece or thought or tokens) and isinstance(index := choice.get("index"), int):
                self._choices.add(index)
            reason = finish_reason(choice)
            if reason is not None:
                self.finish_reason, finished = reason, True
        if text:
            self._texts.append(text)
        if reasoning:
            self._reasonings.append(reasoning)
        carries = bool(text or reasoning)
        if carries or counted or running != _NO_USAGE:
            self._stamps.append(self._data_at[0])
            self._behinds.append(self._data_at[1])
            self._texted.append(carries)
            self._counted.append(counted)
            self._usages.append(running)
            self._held_before.append(self._held)
        if carries or counted:
            self._held = 0
        elif not (role_only or finished) and running == _NO_USAGE and self._stamps:
            self._held += 1

    def _fail(self, kind: str, words: str) -> None:
        if self.problem is None:
            self.problem = (kind, words[:MESSAGE_LENGTH])

    def finish(
        self, how: str, status: int | None, asked: int | None = None, words: str | None = None, exact: bool = False
    ) -> Reading:
        """Return the reading once the answer has ended.

        ``how``: complete, left_open, eof (the body broke off), reset, or the kind of a time limit. ``asked`` tokens
        were wanted; with ``exact``, fewer are a failure (short).
        """
        self._flush_unended(how)
        usage_zero = self.completion_tokens == 0 and self.token_seen
        if usage_zero:
            self.completion_tokens = None
            self.prompt_tokens = self.prompt_tokens or None
        frames, source = self._frames()
        counted = sum(frame.tokens for frame in frames)
        output = self.completion_tokens if source == "usage" else (counted if frames else None)
        kind, message = self._verdict(how, status, words, len(frames), output)
        if kind is None and exact and asked is not None and output is not None and output < asked:
            kind, message = "short", f"{output} of {asked} tokens, finish reason {self.finish_reason}"
        return Reading(
            error_kind=kind,
            error_message=message,
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            output_tokens=output,
            tokens_source=source if output is not None else None,
            frames=tuple(frames),
            text=_joined(self._texts),
            reasoning=_joined(self._reasonings),
            response_id=self.response_id,
            running_usage=self._running(),
            unseen=self._unseen(frames, output),
            usage_zero=usage_zero,
        )

    def _flush_unended(self, how: str) -> None:
        """A last event without a blank line after it, or a last line without its end, is taken if it is whole."""
        if self._line:
            line, self._line = self._line, b""
            value = line.partition(b":")[2].strip()
            if line.startswith(b"data") and (value == b"[DONE]" or isinstance(_decode(value), dict)):
                self._take_line(line, *self._fed)
        if self._data and (
            how != "eof" or isinstance(_decode(b"\n".join(self._data)), dict) or self._data == [b"[DONE]"]
        ):
            self._dispatch()

    def _verdict(
        self, how: str, status: int | None, words: str | None, frames: int, output: int | None
    ) -> tuple[str | None, str | None]:
        if status is not None and status != 200:
            body = self._body_words() or words
            if not body and 300 <= status < 400:
                body = "a redirect, which is not followed; give the address it leads to"
            return "http_status", body or f"status {status} without words"
        ended = self.done or self.finish_reason is not None
        if self.problem is not None:
            return self.problem
        if how in ("connect", "timeout_connect"):
            return how, words
        if how in TRANSPORT_FAILURES and (not ended or how in ("timeout_total", "interrupted")):
            return how, words
        if how == "bad_frame":
            return how, words
        if how == "reset" and not ended:
            return "reset", words
        if self.finish_reason in _FAILED_FINISH:
            return "server_error_in_stream", f"the server ended the answer with finish reason {self.finish_reason!r}"
        if not self.frames_seen:
            return self._no_stream(how)
        if not ended:
            return "truncated", words or "the stream ended without a finish reason and without [DONE]"
        if not frames or output == 0:
            hidden = f", {self.reasoning_tokens} of them reasoning that was not sent" if self._hidden() else ""
            return (
                "no_tokens",
                f"no frame carried a token (finish reason {self.finish_reason}, usage {output}{hidden})",
            )
        return None, None

    def _no_stream(self, how: str) -> tuple[str, str]:
        body = b"".join(self._raw)
        if not body.strip():
            if how in ("eof", "reset"):
                return "truncated", "the connection was closed before anything of the answer came"
            return "no_tokens", "the body of the response is empty"
        document = _decode(body)
        if isinstance(document, dict):
            words = error_words(document)
            if words is not None:
                return "server_error_in_stream", words[:MESSAGE_LENGTH]
            return (
                "bad_frame",
                'the server answered with one JSON document, not with a stream: it ignored "stream": true',
            )
        start = body[:200].decode(errors="replace")
        return (
            "truncated" if how == "eof" else "bad_frame"
        ), f"the response is not an event stream; it starts with: {start}"

    def _body_words(self) -> str:
        """Return the server's words in a response that is no stream."""
        body = b"".join(self._raw)
        if self.problem is not None:
            return self.problem[1]
        document = _decode(body)
        if isinstance(document, dict):
            words = error_words(document)
            if words is not None:
                return words[:MESSAGE_LENGTH]
        return body.decode(errors="replace").strip()[:MESSAGE_LENGTH]

    # Counting

    def _hidden(self) -> int:
        """Return how many of the answer's tokens are reasoning that the server counted and did not send."""
        total, thought = self.completion_tokens, self.reasoning_tokens
        if not thought or total is None or thought > total or self._reasonings or self._running():
            return 0
        return thought

    def _unseen(self, frames: list[Frame], output: int | None) -> str | None:
        if output is None or output < 2 or not frames:
            return None
        if self._hidden():
            return "hidden_reasoning"
        if len(self._choices) > 1:
            return "several_choices"
        arrivals = len({frame.arrival_ns for frame in frames})
        if arrivals == 1:
            return "one_arrival"
        return "bursts" if len(frames) > BURST_FRAMES * arrivals else None

    def _running(self) -> bool:
        """Whether ``usage`` in the frames is a running count.

        It is when every frame with text has one, it never falls, ends at the last usage, and grows in at least half as
        many frames as have text (a total that is repeated, or that only shows at the end, is no running count).
        """
        values = [value for value in self._usages if value != _NO_USAGE]
        if not values or values[-1] != self.completion_tokens:
            return False
        growths = sum(1 for earlier, later in zip([0, *values], values, strict=False) if later > earlier)
        if any(later < earlier for earlier, later in itertools.pairwise(values)) or growths < 1:
            return False
        carrying = [index for index in range(len(self._stamps)) if self._texted[index] or self._counted[index]]
        if any(self._usages[index] == _NO_USAGE for index in carrying):
            return False
        return growths * 2 >= len(carrying)

    def _frames(self) -> tuple[list[Frame], str | None]:
        n = len(self._stamps)
        total = self.completion_tokens
        if self._running():
            frames, last = [], 0
            for index in range(n):
                value = self._usages[index]
                grown = value - last if value != _NO_USAGE else 0
                if grown > 0:
                    frames.append(Frame(self._stamps[index], grown, self._behinds[index]))
                    last = value
            return frames, "usage"
        carrying = [index for index in range(n) if self._texted[index] or self._counted[index]]
        counted = [self._counted[index] for index in carrying]
        have_counts = bool(carrying) and all(count > 0 for count in counted)
        if total is None:
            weights = counted if have_counts else [1] * len(carrying)
            source: str | None = ("token_ids" if have_counts else "frames") if carrying else None
        else:
            source = "usage"
            total -= self._hidden()
            held = [1 + self._held_before[index] for index in carrying]
            if have_counts and sum(counted) == total:
                weights = counted
            elif len(carrying) == total:
                weights = [1] * total
            elif sum(held) == total:
                weights = held
            else:
                weights = spread(total, len(carrying))
        return [
            Frame(self._stamps[index], weight, self._behinds[index])
            for index, weight in zip(carrying, weights, strict=True)
        ], source


def spread(total: int, parts: int) -> list[int]:
    """Return ``total`` spread over ``parts`` as evenly as whole numbers allow, the first part never less than the rest.

    >>> spread(13, 4)
    [4, 3, 3, 3]
    """
    return [-(-total * (part + 1) // parts) - -(-total * part // parts) for part in range(parts)]


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Return why a choice of a frame ended; None while it goes on, however the server writes that."""
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):  # one family of servers sends {"type": "length", …}
        reason = reason.get("type")
    return reason if isinstance(reason, str) and reason.strip().lower() not in _NO_REASON else None


def answer_over(tail: bytes) -> str | None:
    """Return whether the last whole frames in ``tail`` end an answer: "done" after ``[DONE]``, "finished" after a
    finish reason (a frame with usage alone may follow it), else None.

    ``tail`` is the end of a body, chunk framing and all. Only ``data`` lines that start a line are frames: a JSON text
    holds no line end, so what a token says is never taken for one. The first line may be cut and is passed over.

    >>> answer_over(b'\\ndata: {"choices":[{"text":"data: [DONE]"}]}\\n\\n') is None
    True
    """
    for line in reversed(tail.split(b"\n")[1:]):
        name, colon, value = line.strip().partition(b":")
        if name != b"data" or not colon or not line.startswith(b"data"):
            continue
        value = value.strip()
        if value == b"[DONE]":
            return "done"
        frame = _decode(value)
        choices = frame.get("choices") if isinstance(frame, dict) else None
        if choices == []:
            continue
        if not isinstance(choices, list):
            return None
        ended = any(isinstance(choice, dict) and finish_reason(choice) is not None for choice in choices)
        return "finished" if ended else None
    return None


def error_words(frame: dict[str, Any]) -> str | None:
    """Return the server's words if a JSON document is an error, else None.

    Understands ``{"error": {"message": …}}``, ``{"error": "…"}``, ``{"object": "error", "message": …}`` and
    ``{"detail": …}``; a null error is none.
    """
    error = frame.get("error")
    if error:
        if isinstance(error, dict):
            message = error.get("message")
            return message if isinstance(message, str) and message else json.dumps(error, ensure_ascii=False)
        return error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    if "choices" in frame:
        return None
    if frame.get("object") == "error" or ("message" in frame and "code" in frame):
        message = frame.get("message")
        return message if isinstance(message, str) else json.dumps(frame, ensure_ascii=False)
    if "detail" in frame:
        detail = frame["detail"]
        return detail if isinstance(detail, str) else json.dumps(detail, ensure_ascii=False)
    return None


def _content(choice: dict[str, Any]) -> tuple[str, str, int, bool]:
    """Return (text, reasoning text, tokens counted by ids or log probabilities, whether it only names a role)."""
    tokens = 0
    ids = choice.get("token_ids")
    logprobs = choice.get("logprobs")
    if isinstance(ids, list):
        tokens = len(ids)
    elif isinstance(logprobs, dict):
        listed = logprobs.get("tokens") if "tokens" in logprobs else logprobs.get("content")
        tokens = len(listed) if isinstance(listed, list) else 0
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return (text if isinstance(text, str) else ""), "", tokens, False
    if not tokens and isinstance(delta.get("token_ids"), list):
        tokens = len(delta["token_ids"])
    content = delta.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else ""
    refusal = delta.get("refusal")
    if isinstance(refusal, str):
        text += refusal
    for call in delta.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            text += "".join(function[key] for key in ("name", "arguments") if isinstance(function.get(key), str))
    thought = delta.get("reasoning")
    if not isinstance(thought, str) or not thought:
        thought = delta.get("reasoning_content")
    thought = thought if isinstance(thought, str) else ""
    return text, thought, tokens, "role" in delta and not (text or thought or tokens)


def _joined(pieces: list[str]) -> str:
    """Join pieces; halves of a surrogate pair that came in two frames become one character."""
    text = "".join(pieces)
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _either(usage: dict[str, Any], name: str, other: str) -> Any:
    """Return what stands under the usual name, else under the one the newer APIs use."""
    found = usage.get(name)
    return usage.get(other) if found is None else found


def _count(value: Any, otherwise: int | None) -> int | None:
    """Return a number of tokens, which some servers write 12.0; what can be none (negative, absurd) is not there."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value < 1 << 31 else otherwise


def _decode(data: bytes) -> Any:
    """Return the JSON value in ``data``, or None if there is none."""
    try:
        return _loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode(errors="replace"), strict=False)
    except ValueError:
        return None
