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
  Of several choices each must end.
* A ``usage`` that says 0 tokens although frames carried text says nothing; frames are counted then.
* **Tokens nobody saw** (``Reading.unseen``): reasoning that is counted and not sent, or sent as a summary; several
  choices in one stream; everything in one arrival, bursts of many frames, many tokens an arrival. The answer is whole,
  and no speed per token can be had from it.
* An error object inside the stream, even as the first frame, fails the request with the server's words.
"""

import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Sequence
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
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LAST_FRAMES = 4
"""Frames at the end of a body that are looked at to tell whether its answer is over: token, finish, usage, [DONE]."""
BURST_FRAMES = 4
"""Frames that share an arrival above which it is a burst. An answer came in bursts if that many shared an arrival on
average, or if half of its frames came in bursts. Servers that pack put up to four tokens into one write; a proxy that
buffers sends what a fixed time or a full buffer holds, which is far more."""
PACKED_TOKENS = 8
"""Tokens an arrival, on average, above which nobody can speak of one token after the other. Speculative decoding brings
a few tokens a step: four or five on average where it does well, and eight are its usual limit."""


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
    """Why its tokens were not seen one by one (a key of ``schema.UNSEEN``); None where they were."""
    seen_tokens: int | None = None
    """The tokens that its first to its last arrival is the time of, for a speed per token; None where it has none."""
    usage_problem: str | None = None
    """What its tokens were counted from frames for: ``zeros`` (usage said 0, tokens came) or ``missing``."""


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
        self.finished_last = False
        """The last frame with choices gave a finish reason."""
        self.response_id: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self._choices: dict[int, bool] = {}
        """Choices that sent something, and whether each has ended."""
        self.problem: tuple[str, str] | None = None
        """(error kind, words) of the first thing that went wrong."""
        self._texts: dict[int, list[str]] = {}
        self._reasonings: dict[int, list[str]] = {}
        self._thoughts = 0
        """Frames with reasoning text and nothing else."""
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
        text, reasoning, counted, role_only, finished = False, False, 0, False, False
        for place, choice in enumerate(choices):
            if not isinstance(choice, dict):
                continue
            index = choice.get("index")
            if not isinstance(index, int):
                index = place
            piece, thought, tokens, role = _content(choice)
            counted, role_only = counted + tokens, role_only or role
            if piece:
                text = True
                self._texts.setdefault(index, []).append(piece)
            if thought:
                reasoning = True
                self._reasonings.setdefault(index, []).append(thought)
            if piece or thought or tokens:
                self._choices.setdefault(index, False)
            reason = finish_reason(choice)
            if reason is not None:
                self.finish_reason, finished = reason, True
                if index in self._choices:
                    self._choices[index] = True
        self.finished_last = finished
        self._thoughts += reasoning and not text
        carries = text or reasoning
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
        zeros = self.completion_tokens == 0 and self.token_seen
        if zeros:
            self.completion_tokens = None
            self.prompt_tokens = self.prompt_tokens or None
        hidden = self._hidden()
        frames, source = self._frames(hidden)
        counted = sum(frame.tokens for frame in frames)
        output = self.completion_tokens if source == "usage" else (counted if frames else None)
        kind, message = self._verdict(how, status, words, len(frames), output)
        wanted = None if asked is None else asked * max(1, len(self._choices))
        if kind is None and exact and wanted is not None and output is not None and output < wanted:
            kind, message = "short", f"{output} of {wanted} tokens, finish reason {self.finish_reason}"
        unseen = self._unseen(frames, output, hidden)
        return Reading(
            error_kind=kind,
            error_message=message,
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            output_tokens=output,
            tokens_source=source if output is not None else None,
            frames=tuple(frames),
            text=_by_choice(self._texts),
            reasoning=_by_choice(self._reasonings),
            response_id=self.response_id,
            running_usage=self._running(),
            unseen=unseen,
            seen_tokens=output if unseen is None else counted if unseen == "hidden_reasoning" else None,
            usage_problem="zeros" if zeros else "missing" if source == "frames" else None,
        )

    @property
    def ended(self) -> bool:
        """The answer is whole: ``[DONE]`` came, or a finish reason, which each choice that sent anything must have."""
        return self.done or (self.finish_reason is not None and all(self._choices.values()))

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
        ended = self.ended
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
            open_choices = sorted(index for index, over in self._choices.items() if not over)
            which = f" for choice {open_choices[0]}" if self.finish_reason is not None and open_choices else ""
            return "truncated", words or f"the stream ended without a finish reason{which} and without [DONE]"
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

    def _carrying(self) -> list[int]:
        return [index for index in range(len(self._stamps)) if self._texted[index] or self._counted[index]]

    def _growths(self) -> list[int]:
        """Return by how much the running count grew in each frame; 0 where it did not."""
        grown, last = [], 0
        for value in self._usages:
            grown.append(max(0, value - last) if value != _NO_USAGE else 0)
            last = max(last, value)
        return grown

    def _hidden(self) -> int:
        """Return how many of the answer's tokens are reasoning that the server counted and did not send.

        They were sent where reasoning text came, where a tag in the text says so, or where more frames with text came
        than tokens that are not reasoning. A running count that makes a leap over them was not seen to grow.
        """
        total, thought = self.completion_tokens, self.reasoning_tokens
        if not thought or total is None or thought > total or self._reasonings:
            return 0
        if self._running():
            return thought if thought > PACKED_TOKENS and max(self._growths()) >= thought else 0
        carrying = self._carrying()
        tagged = any("</think" in "".join(pieces) for pieces in self._texts.values())
        counted = sum(self._counted[index] for index in carrying)
        return 0 if tagged or max(len(carrying), counted) > total - thought else thought

    def _summarised(self) -> bool:
        """Whether reasoning text came in far fewer pieces than reasoning tokens were counted, measured by the tokens
        that the other frames hold."""
        total, thought = self.completion_tokens, self.reasoning_tokens
        if not thought or total is None or thought > total or not self._thoughts or self._running():
            return False
        carrying = self._carrying()
        if sum(self._counted[index] for index in carrying) == total:
            return False
        others = len(carrying) - self._thoughts
        usual = max(1.0, (total - thought) / others) if others else 1.0
        return thought / self._thoughts > PACKED_TOKENS * usual

    def _unseen(self, frames: list[Frame], output: int | None, hidden: int) -> str | None:
        if output is None or output < 2 or not frames:
            return None
        if len(self._choices) > 1:
            return "several_choices"
        if hidden:
            return "hidden_reasoning" if (why := bunching(frames)) is None else why
        return "summarised_reasoning" if self._summarised() else bunching(frames)

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
        carrying = self._carrying()
        if any(self._usages[index] == _NO_USAGE for index in carrying):
            return False
        return growths * 2 >= len(carrying)

    def _frames(self, hidden: int) -> tuple[list[Frame], str | None]:
        total = self.completion_tokens
        if self._running():
            growths = self._growths()
            if hidden:
                growths[growths.index(max(growths))] -= hidden
            return [
                Frame(self._stamps[index], grown, self._behinds[index])
                for index, grown in enumerate(growths)
                if grown > 0
            ], "usage"
        carrying = self._carrying()
        counted = [self._counted[index] for index in carrying]
        have_counts = bool(carrying) and all(count > 0 for count in counted)
        if total is None:
            weights = counted if have_counts else [1] * len(carrying)
            source: str | None = ("token_ids" if have_counts else "frames") if carrying else None
        else:
            source = "usage"
            total -= hidden
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


def bunching(frames: Sequence[Frame]) -> str | None:
    """Return how frames came otherwise than one by one: one_arrival, bursts (many frames an arrival) or packed (many
    tokens an arrival); None where they did not. Who bunched them, server or what lies between, cannot be told."""
    sizes = Counter(frame.arrival_ns for frame in frames)
    tokens = sum(frame.tokens for frame in frames)
    if len(sizes) == 1:
        return "one_arrival" if tokens > 1 else None
    in_bursts = sum(size for size in sizes.values() if size > BURST_FRAMES)
    if len(frames) > BURST_FRAMES * len(sizes) or 2 * in_bursts >= len(frames):
        return "bursts"
    return "packed" if tokens > PACKED_TOKENS * len(sizes) else None


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


def answer_over(tail: bytes, whole: bool = False) -> str | None:
    """Return whether the last frames in ``tail`` end an answer: "done" after ``[DONE]``, "finished" after a finish
    reason and usage, "finished_without_usage" after a finish reason alone; else None.

    ``tail`` is the end of a body without its framing; its first frame may be cut, and is passed over, unless it is the
    ``whole`` body. The frames are read as the answer's own reading does it, so what a token says is never an end.

    >>> answer_over(b'\\n\\ndata: {"choices":[{"text":"data: [DONE]"}]}\\n\\n') is None
    True
    """
    if b"[DONE]" not in tail and b"finish_reason" not in tail:
        return None
    *events, rest = _EVENT_END.split(tail) if b"\r" in tail else tail.split(b"\n\n")
    last = [event for event in (events if whole else events[1:]) if b"data" in event][-LAST_FRAMES:]
    parser = StreamParser()
    for event in last:
        parser.feed(event + b"\n\n", 0)
    if events or whole:
        parser.feed(rest, 0)
    parser.finish("left_open", 200)
    if parser.done:
        return "done"
    if not (parser.ended and parser.finished_last):
        return None
    return "finished_without_usage" if parser.completion_tokens is None else "finished"


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


def _by_choice(pieces: dict[int, list[str]]) -> str:
    """Return the text of all choices, one after the other."""
    return "".join(_joined(pieces[index]) for index in sorted(pieces))


def _either(usage: dict[str, Any], name: str, other: str) -> Any:
    """Return what stands under the usual name, else (none or 0 there) under the one the newer APIs use."""
    found = usage.get(name)
    return usage[other] if not found and usage.get(other) is not None else found


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
