"""Writes docs/workbench.md: a session with every command of the workbench, recorded as it runs.

The session works in a clone of the checkout, plants faults there and finds them. `python -m
lab.report.transcripts` writes the page anew; nothing in it is typed by hand but the words between.
On a GPU the commands take it: `--page docs/workbench-h200.md` is that session on a card.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from dsv4.runtime.device import cuda_problem, open_device
from lab.report.terminal import Action, record

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "workbench.md"
_LONGEST = 46
_HEAD = """# The workbench

What each command shows, recorded by `python -m lab.report.transcripts` on {where}. The session
plants four faults in a clone and finds them: a wrong tile, a wrong scale, a missing barrier, a
slowed loop.

Who finds what, and names which place (`tests/lab/test_planted_faults.py` holds every entry):

| | wrong tile | wrong scale | missing barrier | slowed loop |
| --- | --- | --- | --- | --- |
| `kernel-diff` | element and pattern | row, and the factor 0.5 | element | it has one time |
| `probe` | the output, after right stages | stage and line | stage and line | right numbers |
| `sanitize` | failing case, element | failing case, row | race, line | right numbers |
| `compare` | case, element | case, row | case, element | case |
| `golden check` | element and pattern | row | element | goldens hold no times |
"""


@dataclass
class Session:
    """The clone that commands run in, and the page so far."""

    folder: Path
    on_gpu: bool
    parts: list[str] = field(default_factory=list)

    def say(self, title: str, words: str) -> None:
        """A heading and a paragraph."""
        self.parts.append(f"## {title}\n\n{words}\n")

    def run(self, line: str, actions: Sequence[Action] = ()) -> None:
        """Record one command of the workbench."""
        arguments = shlex.split(line)
        assert arguments[0] == "dsv4-lab"
        command = [sys.executable, "-m", "lab.cli", *arguments[1:]]
        shown, code = record(command, self.folder, self._environment(), actions)
        self._keep(f"$ {line}\n{shown}" + (f"\n(exit {code})" if code else ""))

    def plant(self, file: str, old: str, new: str) -> None:
        """Edit a source of the clone, and show the edit."""
        path = self.folder / "cuda" / file
        text = path.read_text()
        assert old in text, f"{old!r} is not in {file}"
        path.write_text(text.replace(old, new, 1))
        shown = self.git("diff", "--unified=0", "--", f"cuda/{file}")
        lines = [s for s in shown.splitlines() if s[:1] in "+-" and s[:3] not in ("+++", "---")]
        self._keep(f"cuda/{file}\n" + "\n".join(lines), "diff")

    def restore(self) -> None:
        """Take every planted fault out again."""
        self.git("checkout", "-q", "--", "cuda")

    def git(self, *arguments: str) -> str:
        """Git in the clone."""
        names = {f"GIT_{who}_{what}": "session" for who in ("AUTHOR", "COMMITTER")
                 for what in ("NAME", "EMAIL")}  # fmt: skip
        done = subprocess.run(
            ["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True,
            env={**os.environ, **names},
        )  # fmt: skip
        return done.stdout

    def _environment(self) -> dict[str, str]:
        cache = os.environ.get("DSV4_CACHE", str(Path.home() / ".cache" / "dsv4-lab"))
        return {**os.environ, "PYTHONPATH": str(self.folder), "DSV4_CACHE": cache,
                "HOME": str(self.folder / ".home")}  # fmt: skip

    def _keep(self, text: str, language: str = "") -> None:
        lines = text.replace(f"{self.folder}/", "").replace(str(self.folder), ".").splitlines()
        if len(lines) > _LONGEST:
            left = len(lines) - _LONGEST + 1
            lines = [*lines[: _LONGEST - 8], f"... {left} lines left out", *lines[-7:]]
        self.parts.append(f"```{language}\n" + "\n".join(lines) + "\n```\n")


def whole_session(session: Session) -> None:
    """Every command, in the order in which a person would need it."""
    s = session
    s.say("A golden and a record", "What is right today is written down twice: as reviewed"
          " digests, and as a record with times.")  # fmt: skip
    s.run("dsv4-lab golden check rms_norm -c verify --folder goldens")
    s.run("dsv4-lab golden review --folder goldens", [("[q]uit? ", "a")] * 4)
    s.run("dsv4-lab -q kernel-diff rms_norm -c verify")

    s.say("A wrong tile", "kernel-diff names the first element, its block, and what all wrong"
          " elements have in common. compare and golden check say what moved.")  # fmt: skip
    s.plant("rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
            "y[i] = w[i] * (x[i] * factor) * (i < 512 ? 1.0f : 1.001f);")  # fmt: skip
    s.run("dsv4-lab kernel-diff rms_norm -c verify")
    s.run("dsv4-lab compare 1 2 --explain")
    s.run("dsv4-lab golden check rms_norm -c verify --folder goldens")
    s.run("dsv4-lab -q kernel-diff rms_norm_f32 -c verify --no-record --no-time"
          " --against golden:goldens")  # fmt: skip
    s.say("minimise and replay", "The smallest shape that still fails, then the plainest values.")
    s.run("dsv4-lab minimise rms_norm -c verify -o minimised")
    found = next((s.folder / "minimised").glob("*.case")).relative_to(s.folder)
    s.run(f"dsv4-lab replay {found}")
    s.say("watch", "On every save: compile, compare, time one case, show what changed.")
    s.run(
        "dsv4-lab watch rms_norm -c verify --until-green",
        [(" pass", s.restore)],
    )

    s.say("A wrong scale", "probe compares the stages inside the kernel with the oracle's stages of"
          " the same name and names the line of the first difference.")  # fmt: skip
    s.plant(
        "act_quant.cu",
        "const int k = scale_exponent(amax, mantissa) - exponent;",
        "const int k = scale_exponent(amax, mantissa) - exponent + (blockIdx.x == 5);",
    )
    s.run("dsv4-lab probe act_quant_fp8 -c verify --at T=5,K=300")
    s.run("dsv4-lab probe act_quant_fp8 --list")
    s.say("shell", "A prompt with the case's arrays; rebuild() takes the source as it is now.")
    s.run(
        "dsv4-lab shell act_quant_fp8 -c verify",
        [
            ("In [1]: ", "where(got.scales != ref.scales)[:2]\r"),
            ("In [2]: ", "got.scales[5, 0] / ref.scales[5, 0]\r"),
            ("In [3]: ", "exit\r"),
        ]
        if _has_ipython()
        else [
            (">>> ", "where(got.scales != ref.scales)[:2]\r"),
            (">>> ", "got.scales[5, 0] / ref.scales[5, 0]\r"),
            (">>> ", "\x04"),
        ],
    )
    s.say("bisect forward", "A fault seen from the engine's pass over the tiny checkpoint: the"
          " first launch whose own error leaves its contract, in which layer, and the launch alone"
          " with the file that replays it.")  # fmt: skip
    s.restore()
    s.plant("act_quant.cu", "const float scale = exp2_of(k), inverse = exp2_of(-k);",
            "const float scale = exp2_of(k + 1), inverse = exp2_of(-k);")  # fmt: skip
    s.run("dsv4-lab bisect forward --tiny --samples 4")
    s.say("bisect source", "And seen from the history: the fault is committed between two others.")
    good = s.git("rev-parse", "--short", "HEAD").strip()
    s.git("commit", "-q", "-a", "-m", "Speed up the FP4 scale")
    s.plant("cast.cu", "// cast", "// casts")
    s.git("commit", "-q", "-a", "-m", "Comment")
    s.run(f"dsv4-lab bisect source {good}..HEAD act_quant_fp4_inplace -c queries")
    s.git("reset", "-q", "--hard", good)

    s.say("A missing barrier", "sanitize runs compute-sanitizer on a GPU and the check mode"
          " elsewhere.")  # fmt: skip
    s.plant("router.cu", "    __syncthreads();\n    if (threadIdx.x >= 32) return;",
            "    if (threadIdx.x >= 32) return;")  # fmt: skip
    s.run("dsv4-lab sanitize router")
    s.restore()
    s.say("A slowed loop", "Times are compared as intervals; a gap is needed for SLOWER.")
    s.run("dsv4-lab -q kernel-diff rms_norm_f32 -c verify")
    s.plant("rms_norm.cu", "    Sum sum = 0;\n",
            "    Sum sum = 0;\n    float wait = eps;\n"
            "    for (int i = 0; i < 2000; ++i) wait = sqrtf(wait);\n"
            "    if (wait == 2.0f) sum = 1;\n")  # fmt: skip
    s.run("dsv4-lab -q kernel-diff rms_norm_f32 -c verify")
    s.run("dsv4-lab compare 3 4")
    s.say("compile --diff", "Machine code against a revision, for any architecture, without a"
          " GPU.")  # fmt: skip
    s.run("dsv4-lab compile rms_norm --arch sm_90a,sm_100a --diff HEAD")
    s.restore()
    s.run("dsv4-lab compile rms_norm --arch sm_90a,sm_100a --diff HEAD")
    s.say("Workers", "Several processes, which take turns on one GPU; a dead one costs its"
          " case.")  # fmt: skip
    s.run("dsv4-lab kernel-diff cast act_quant_fp4_inplace --workers 2")
    what = "" if s.on_gpu else "; here without a GPU"
    s.say("ncu", f"Headline metrics of one launch, kept beside its timing{what}.")
    s.run("dsv4-lab ncu rms_norm -c prefill")
    s.say("report", "The store as one page, light and dark, wide and narrow"
          " ([screenshots](report/)).")  # fmt: skip
    s.run("dsv4-lab report -o report.html --tiny")


def _has_ipython() -> bool:
    import importlib.util

    return importlib.util.find_spec("IPython") is not None


@click.command()
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), default=PAGE)
def main(page: Path) -> None:
    """Run the session in a fresh clone and write the page.

    Example: python -m lab.report.transcripts --page docs/workbench-h200.md
    """
    on_gpu = cuda_problem() is None
    where = f"an {open_device('cuda').name}" if on_gpu else "the CPU of a machine without a GPU"
    with tempfile.TemporaryDirectory(prefix="dsv4-lab-") as folder:
        clone = Path(folder) / "dsv4-lab"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        session = Session(clone, on_gpu)
        whole_session(session)
    page.parent.mkdir(parents=True, exist_ok=True)
    head = _HEAD.replace("{where}", where)
    page.write_text("\n".join([head, *session.parts]), encoding="utf-8")
    click.echo(f"{page} written")


if __name__ == "__main__":
    main()
