"""Section [attack] of the configuration."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..topology.section import Count, Fraction, Index, Needs, NotNegative, Section

_WITH_STRENGTH = (
    "sign-flip", "noise", "inflate", "alie", "ipm", "dissensus", "equivocation", "copy", "forged-norm"
)  # fmt: skip


@dataclass(frozen=True)
class Attack(Section):
    """Clients that attack the others. They send as many messages as the others do; docs/adversaries.md says what each
    kind puts into them. The mean over clients is that of the honest ones."""

    clients: tuple[Index, ...] = ()
    """Who attacks; none named, and fraction 0: nobody."""
    fraction: Annotated[Fraction, "Or this share of the clients, drawn at random."] = 0.0
    kind: Annotated[
        Literal[
            "sign-flip",
            "noise",
            "zeros",
            "inflate",
            "alie",
            "ipm",
            "dissensus",
            "equivocation",
            "replay",
            "copy",
            "forged-norm",
            "label-flip",
            "backdoor",
            "silence",
        ],
        Needs("clients or fraction"),
    ] = "sign-flip"
    """What they do. sign-flip: they send their vectors with the other sign; noise: with normal noise added; zeros:
    nothing but zeros; inflate: many times as long; alie: a little less than the mean of what they hear, by coordinate;
    ipm: its mean with the other sign, shortened; dissensus: to each neighbour what undoes its averaging;
    equivocation: to neighbours in turn too much and too little; replay: for ever what they sent before ``from_round``;
    copy: to each neighbour what it has just sent, and in every fifth round the opposite; forged-norm: sign-flip, with a
    norm beside it that makes it small; label-flip: they learn from labels that are not true; backdoor: also from
    samples with a ``trigger``; silence: in a scenario, they send nothing."""
    from_round: Annotated[Count, Needs("clients or fraction"), "Until this round they are honest."] = 1
    strength: Annotated[NotNegative | None, Needs("clients or fraction"), Needs("kind", *_WITH_STRENGTH)] = None
    """sign-flip, forged-norm: the factor; inflate, and copy in every fifth round: the same, by default 10; noise,
    equivocation: the noise's length relative to the vector's; alie: standard deviations from the mean, by default what
    clients and attackers tell; ipm: epsilon, by default 0.5; dissensus: epsilon; by default 1."""
    labels: Annotated[tuple[Index, ...], Needs("kind", "label-flip")] = ()
    """label-flip: the class that takes the place of each one; none named: C - 1 - y of C classes."""
    share: Annotated[Fraction, Needs("kind", "backdoor"), "backdoor: of their training samples, so many show it."] = 0.5
    trigger: Annotated[tuple[Index, ...], Needs("kind", "backdoor")] = ()
    """backdoor: features of a sample, numbered in the order in which they lie, that are set to ``value``; none named:
    of a picture the lower right corner, a quarter of it a side, else the last tenth."""
    value: Annotated[float, Needs("kind", "backdoor"), "backdoor: what these features are set to."] = 1.0
    target: Annotated[Index, Needs("kind", "backdoor")] = 0
    """backdoor: the class that such samples are taught to belong to. Metric backdoor_success is how many of a client's
    test samples of other classes are taken for it once they have the trigger, in share."""

    @property
    def attacks(self) -> bool:
        return bool(self.clients or self.fraction)

    @property
    def text(self) -> str:
        """Returns it in words, for the records."""
        return f"{self.kind}, from round {self.from_round}"

    def __post_init__(self) -> None:
        if self.clients and self.fraction:
            raise ValueError("clients and fraction exclude each other: give one of them")
