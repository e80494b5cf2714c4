"""Agentic sessions: what a client says in each round; pure.

A session is a system prompt and some rounds. Each round adds the model's last answer and a new text, of a user at first
and of a tool from then on, so that the prompt grows and its beginning stays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# Random letters: what they mean does not matter to a model of random weights.
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORD_LETTERS = 6
TOOL_WORDS = 24
USER_WORDS = 16
SYSTEM_WORDS = 60

Message = dict[str, str]


def text(words: int, dice: random.Random) -> str:
    return " ".join("".join(dice.choices(LETTERS, k=WORD_LETTERS)) for _ in range(words))


@dataclass
class Session:
    """One conversation. ``number`` decides all of its texts; the answers are the model's."""

    number: int
    rounds: int
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.number)
        # Half of it is everybody's: a prefix that every prefill server has soon.
        system = text(SYSTEM_WORDS, random.Random(0)) + " " + text(SYSTEM_WORDS, self._dice)
        self.messages.append({"role": "system", "content": system})

    def ask(self, round_: int) -> list[Message]:
        """The messages of round ``round_``, from 0 on. To be called once per round, in order."""
        new = text(TOOL_WORDS if round_ else USER_WORDS, self._dice)
        who = {"role": "tool", "tool_call_id": f"call-{round_}"} if round_ else {"role": "user"}
        self.messages.append(who | {"content": new})
        return self.messages

    def answered(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})


def is_streamed(session: int, round_: int, share: float) -> bool:
    """Whether this request streams: the same ones in each run, about ``share`` of all."""
    return random.Random(session * 1009 + round_).random() < share
