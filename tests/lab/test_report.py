"""The report: one file, no script, no outside reference, a table under every figure."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lab.report import figures
from lab.report.content import Row, focus, gather, history, roofline, verdicts
from lab.report.page import Part, render
from tests.lab.planted import lab, planted

pytest.importorskip("matplotlib")


class Outline(HTMLParser):
    """Tags in order, and every attribute that could fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and value:
                self.links.append(value)
            if name == "id" and value:
                self.ids.append(value)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of two records, one with a wrong tile, with the forward pass."""
    folder = tmp_path_factory.mktemp("report")
    case = ("kernel-diff", "rms_norm", "cast", "-c", "verify,tail", "--backend", "host")
    assert lab(folder, *case).returncode == 0
    wrong = planted(folder, "rms_norm.cu", "y[i] = w[i] * (x[i] * factor);",
                    "y[i] = w[i] * (x[i] * factor) * (i < 512 ? 1.0f : 1.001f);")  # fmt: skip
    assert lab(folder, *case, DSV4_CUDA_ROOT=wrong).returncode == 1
    done = lab(folder, "report", "--tiny", "--backend", "host", DSV4_CUDA_ROOT=wrong)
    assert done.returncode == 0, done.stderr
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_file_has_no_script_and_fetches_nothing(page: str) -> None:
    outline = Outline(page)
    assert not {"script", "iframe", "link", "object", "embed", "img"} & set(outline.tags)
    assert all(link.startswith("#") for link in outline.links), outline.links
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page and "javascript:" not in page
    assert "default-src 'none'" in page


def test_every_figure_has_its_table_under_it(page: str) -> None:
    sections = re.findall(r"<section>.*?</section>", page, re.DOTALL)
    drawn = [s for s in sections if "<svg" in s]
    assert len(drawn) >= 8
    assert all(s.index("</svg>") < s.index("<table>") for s in drawn)
    assert all("<tbody><tr>" in s for s in drawn)


def test_all_kinds_of_figures_are_there(page: str) -> None:
    for title in ("Verdicts", "ULP histograms", "error map", "signed error by magnitude",
                  "Forward pass", "Roofline", "Time history"):  # fmt: skip
        assert re.search(rf"<h2>[^<]*{title}", page), title


def test_the_wrong_tile_is_first_and_shown_in_words_and_table(page: str) -> None:
    assert page.index("rms_norm verify") < page.index("Roofline")
    assert "4096 of 8192 elements leave ulp(5)" in page
    assert '<td class="FAIL">FAIL</td>' in page


def test_ids_are_unique_and_every_reference_has_its_target(page: str) -> None:
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | {n[1:] for n in outline.links}
    assert used <= set(outline.ids)


def test_colours_come_from_the_page_so_that_one_drawing_serves_both_themes(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    drawings = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert "var(--ink)" in drawings
    stray = set(re.findall(r"#[0-9a-fA-F]{6}\b", drawings)) - {"#ffffff"}
    assert not stray, stray


def test_drawings_have_no_fixed_size(page: str) -> None:
    for tag in re.findall(r"<svg[^>]*>", page):
        assert "viewBox" in tag and " width=" not in tag and " height=" not in tag


def test_text_is_escaped() -> None:
    part = Part("<b>", "a & b", ("<x>",), (("<script>alert(1)</script>",),))
    made = render("t <u>", ["f > g"], [part])
    assert "<script>" not in made and "&lt;script&gt;" in made


def test_the_error_map_covers_every_element_once() -> None:
    use = np.zeros((7, 130))
    use[6, 129] = 3.0
    _, table = figures.error_map(use, (1, 64), ("T", "D"), "m")
    assert table[0][:3] == ("T=6", "D 128..129", 1)
    assert sum(row[2] for row in table) == 1


def test_cells_are_cut_at_the_tiles_of_a_block() -> None:
    for size in (5, 64, 513, 4096):
        for tile in (0, 1, 48, 64, 512):
            step = figures._cells(size, tile)
            assert step >= 1
            assert tile in (0,) or tile >= size or tile % step == 0 or step % tile == 0


def test_an_empty_store_makes_no_file(tmp_path: Path) -> None:
    done = lab(tmp_path, "report")
    assert done.returncode == 8
    assert "no results" in done.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_date_that_is_none_is_refused(tmp_path: Path) -> None:
    done = lab(tmp_path, "report", "--since", "yesterday")
    assert (done.returncode, "yesterday" in done.stderr) == (2, True)


def test_a_run_can_write_its_own_page(tmp_path: Path) -> None:
    done = lab(tmp_path, "kernel-diff", "cast", "-c", "tail", "--backend", "host", "--no-record",
               "--report", "out/run.html")  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "out" / "run.html").read_text()
    assert "cast_bf16" in made and "<svg" in made


def test_gathering_takes_the_newest_of_each_case(tmp_path: Path) -> None:
    for _ in range(2):
        lab(tmp_path, "kernel-diff", "cast", "-c", "tail", "--backend", "host", "--no-time")
    found = gather(tmp_path / ".lab" / "lab.db")
    assert [r["run"] for r in found.rows] == [1, 2]
    assert [r["run"] for r in found.latest] == [2]
    assert verdicts(found.latest).rows[0][:3] == ("cast_bf16", "host run", "PASS")
    assert focus(found.latest)[0]["kernel"] == "cast_bf16"
    assert gather(tmp_path / ".lab" / "lab.db", since="2999-01-01").rows == ()


def test_a_result_that_is_no_case_of_a_kernel_has_its_row_without_a_share_of_the_roof() -> None:
    # As eval and twin keep theirs, and as a step across cards is timed.
    untimed: Row = {
        "kernel": "eval",
        "case": "tiny",
        "backend": "host",
        "verdict": "PASS",
        "run": 1,
    }
    timed: Row = {**untimed, "kernel": "step", "time_s": 2e-3, "bytes": 4e6}
    table = verdicts([untimed, timed])
    share = table.header.index("% of copy")
    assert [(row[0], row[share]) for row in table.rows] == [("eval", None), ("step", None)]
    assert [(row[0], row[-1]) for row in roofline([untimed, timed]).rows] == [("step", None)]
    assert len(history([untimed, timed, timed]).rows) == 2
