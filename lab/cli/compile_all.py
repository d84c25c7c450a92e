"""`dsv4-lab compile`: every kernel for every architecture, on a machine without a GPU."""

from __future__ import annotations

import click

from dsv4 import registry
from dsv4.runtime.nvrtc import ARCHITECTURES, nvrtc_version
from dsv4.spec import KernelSpec
from lab.builds import Build, build_all, plan
from lab.cli import settings, text
from lab.cli.code_changes import show_code_changes
from lab.cli.exit_codes import ExitCode
from lab.cli.types import KERNEL

_FAILURES = ("spills", "warnings")


@click.command("compile")
@click.argument("kernels", metavar="[KERNEL]...", nargs=-1, type=KERNEL)
@click.option("--all", "everything", is_flag=True, help="Compile every kernel.")
@click.option(
    "--fail-on",
    type=click.Choice(_FAILURES),
    multiple=True,
    default=("spills",),
    show_default=True,
    help="What makes a build a failure, beside errors.",
)
@click.option("--diff", "revision", metavar="REV", help="Compare code with a git revision's.")
@click.pass_context
def compile_all(
    ctx: click.Context,
    kernels: tuple[str, ...],
    everything: bool,
    fail_on: tuple[str, ...],
    revision: str | None,
) -> None:
    """Compile kernels with NVRTC and show what they use; no GPU is needed.

    Every set of build constants that a case uses is built. A spill fails, unless the kernel
    declares it.

    \b
    Example:
      dsv4-lab compile rms_norm --arch sm_90a
      dsv4-lab compile rms_norm --diff HEAD~1
    """
    if not kernels and not everything:
        raise click.UsageError("name kernels, or pass --all")
    specs = registry.match(kernels)
    arches = settings.current().arch or ARCHITECTURES
    version = nvrtc_version()
    work = plan(specs, arches)
    if revision is not None:
        ctx.exit(show_code_changes(work, revision))
    builds = []
    with text.progress("compile", len(work)) as bar:
        for build in build_all(work):
            builds.append(build)
            bar.update(1)
    failed = [b for b in builds if _fails(b, fail_on)]
    if settings.current().json:
        text.emit_json(
            "compile",
            nvrtc=version,
            arch=list(arches),
            summary={"kernels": len(specs), "builds": len(builds), "failed": len(failed)},
            builds=[b.to_json() for b in builds],
        )
    else:
        text.say(_table(specs, arches, builds))
        for build in failed:
            text.say(f"\n{text.verdict('FAIL')}  {_explain(build, fail_on)}")
        fresh = sum(not b.cached and not b.skipped for b in builds)
        text.note(
            f"{len(specs)} kernels, {len(builds)} builds ({fresh} fresh), {len(failed)} failed,"
            f" nvrtc {version}"
        )
    ctx.exit(ExitCode.COMPILE if failed else ExitCode.OK)


def _fails(build: Build, fail_on: tuple[str, ...]) -> bool:
    is_spill = bool(build.problem) and build.registers > 0
    if is_spill and "spills" not in fail_on:
        return False
    return bool(build.problem) or bool("warnings" in fail_on and build.warnings)


def _explain(build: Build, fail_on: tuple[str, ...]) -> str:
    constants = " ".join(f"{k}={v}" for k, v in build.constants.items())
    what = build.problem or "\n  ".join(build.warnings)
    return (
        f"{build.kernel} for {build.arch} {constants}\n  {what}\n"
        f"  rerun: dsv4-lab compile {build.kernel} --arch {build.arch}"
    )


def _table(specs: list[KernelSpec], arches: tuple[str, ...], builds: list[Build]) -> str:
    """One row a kernel, one column an architecture; the largest of all builds of that pair."""
    header = ["kernel", "builds", *(f"{arch} regs/shared/spill" for arch in arches), "warnings"]
    rows = []
    for spec in specs:
        mine = [b for b in builds if b.kernel == spec.name]
        cells = [_cell([b for b in mine if b.arch == arch]) for arch in arches]
        warnings = len({w for b in mine for w in b.warnings})
        rows.append([spec.name, len(mine) // len(arches), *cells, warnings or ""])
    return text.table(header, rows)


def _cell(builds: list[Build]) -> str:
    if builds[0].skipped:
        return builds[0].skipped
    if any(b.problem and not b.registers for b in builds):
        return text.verdict("FAIL")
    names = ("registers", "shared_bytes", "spill_bytes")
    shown = "/".join(str(max(getattr(b, name) for b in builds)) for name in names)
    return f"{shown} {text.verdict('FAIL')}" if any(b.problem for b in builds) else shown
