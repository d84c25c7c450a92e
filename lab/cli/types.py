"""Parameter types of the command line: checked with near matches, completed from the registry."""

from __future__ import annotations

import difflib
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

# What NVRTC 12.9 and 13 build and the kernels' least (bf16 arithmetic, cp.async) allows.
KNOWN_ARCHITECTURES: Final = (
    "sm_80",
    "sm_86",
    "sm_87",
    "sm_89",
    "sm_90",
    "sm_90a",
    "sm_100",
    "sm_100a",
    "sm_103",
    "sm_103a",
    "sm_110",
    "sm_110a",
    "sm_120",
    "sm_120a",
    "sm_121",
    "sm_121a",
)


class ArchitectureList(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A comma-separated list of GPU architectures."""

    name = "architectures"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The architectures, each once, in the given order."""
        if isinstance(value, tuple):
            return value
        chosen = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        for arch in chosen:
            if arch not in KNOWN_ARCHITECTURES:
                near = difflib.get_close_matches(arch, KNOWN_ARCHITECTURES, n=3, cutoff=0.5)
                hint = f"did you mean {', '.join(near)}?" if near else "they look like sm_90a"
                self.fail(f"no architecture {arch!r}; {hint}", param, ctx)
        return chosen

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Architectures that extend the last item of the list."""
        return _complete_last(KNOWN_ARCHITECTURES, incomplete)


class KernelPattern(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A kernel: exact name, family, glob or prefix. What it matches is decided by the command."""

    name = "kernel"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The pattern itself, once it matches something. Errors: SpecError with near matches."""
        from dsv4 import registry

        registry.match([value])
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Kernels and families with that prefix."""
        from dsv4 import registry

        items = [CompletionItem(k, help=v.spec.summary) for k, v in registry.kernels().items()]
        items += [CompletionItem(f, help="family") for f in registry.families()]
        unique = {item.value: item for item in reversed(items)}
        return [unique[name] for name in sorted(unique) if name.startswith(incomplete)]


class CaseName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A comma-separated list of case names (or `adversarial`), as `-c` takes it."""

    name = "cases"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Case names of the kernels chosen so far."""
        from lab.cases.select import ADVERSARIAL

        names = {c.name for _, cases in _chosen_cases(ctx) for c in cases} | {ADVERSARIAL}
        return _complete_last(sorted(names), incomplete)


class CaseFilter(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A case filter such as `T=1,D=4096` or `T>=128`, as `-p` takes it."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The pattern itself, once it parses. Errors: SpecError."""
        from lab.cases.select import parse

        parse(value)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Axis names, or the sizes that an axis has once `AXIS=` is typed."""
        done, _, last = incomplete.rpartition(",")
        lead = f"{done}," if done else ""
        axis, equals, start = last.partition("=")
        sizes: dict[str, set[int]] = {}
        for _, cases in _chosen_cases(ctx):
            for case in cases:
                for name, size in case.axes.items():
                    sizes.setdefault(name, set()).add(size)
        if equals:
            found = [str(s) for s in sorted(sizes.get(axis, ())) if str(s).startswith(start)]
            return [CompletionItem(f"{lead}{axis}={size}") for size in found]
        return [CompletionItem(f"{lead}{a}=") for a in sorted(sizes) if a.startswith(axis)]


def _chosen_cases(ctx: click.Context) -> list[tuple[Any, Any]]:
    """Kernels named so far, with their cases; all kernels when none is named."""
    from dsv4 import registry
    from dsv4.errors import SpecError
    from lab.cases import cases

    given = ctx.params.get("kernels") or ctx.params.get("kernel") or ()
    patterns = [given] if isinstance(given, str) else list(given)
    # An option still without its value ends Click's parsing early and leaves the kernels here.
    patterns = patterns or [word for word in ctx.args if not word.startswith("-")]
    try:
        return [(spec, cases(spec.name)) for spec in registry.match(patterns)]
    except SpecError:
        return []


def _complete_last(choices: Any, incomplete: str) -> list[CompletionItem]:
    done, _, last = incomplete.rpartition(",")
    lead = f"{done}," if done else ""
    return [CompletionItem(lead + choice) for choice in choices if choice.startswith(last)]


ARCHITECTURES: Final = ArchitectureList()
KERNEL: Final = KernelPattern()
CASE_NAMES: Final = CaseName()
CASE_PATTERN: Final = CaseFilter()
