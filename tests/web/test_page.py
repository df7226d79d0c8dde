"""The page in a real browser: every panel and control, against a server that plays the session."""

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

pytest.importorskip("bokeh", reason="bokeh is not installed: BokehJS comes with it")

from tests.web.browsing import Page, moving, opened, says, until, value, wait
from tests.web.fake_page import TOKEN, FakePage, pack

CUT = """which => [...document.querySelectorAll(which)].filter(
    (each) => each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 1
).map((each) => each.id || each.className || each.tagName)"""
"""Parts whose content does not fit."""

COLOUR = "which => getComputedStyle(document.querySelector(which)).color"
SIZES = ((1280, 800), (1920, 1080))
PANELS = ("latents", "raster", "rates", "portrait", "evidence", "latency", "session")


@pytest.fixture(scope="module")
def fake() -> Iterator[FakePage]:
    """A session of two latents."""
    server = FakePage(channels=40)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def tab(browser: Any, fake: FakePage) -> Iterator[Any]:
    """The page of that session, with the token."""
    with opened(browser, f"{fake.address}/#token={TOKEN}") as found:
        yield found


@pytest.fixture
def page(tab: Page, fake: FakePage) -> Page:
    """The same, while all is well."""
    fake.flowing, fake.frozen = True, False
    fake.report = {"phase": "ready", "why": ""}
    tab.evaluate("document.activeElement.blur()")
    moving(tab)
    return tab


def test_a_panel_shows_newer_and_newer_data(page: Page) -> None:
    read = (
        "names => names.map(name => Number(document.getElementById('panel-' + name).dataset.time))"
    )
    until(page, f"names => ({read})(names).every(Number.isFinite)", list(PANELS))
    before, paints = page.evaluate(read, list(PANELS)), page.evaluate("evkf.paints")
    until(
        page,
        f"([names, before]) => ({read})(names).every((time, k) => time > before[k])",
        [list(PANELS), before],
    )
    # What is set need not be painted: every figure was, more often than before.
    until(page, "before => evkf.paints.every((count, k) => count > before[k])", paints)


def test_pictures_of_panels_change(page: Page) -> None:
    for name in ("latents", "raster", "rates", "portrait"):
        plot = page.locator(f"#plot-{name}")
        before = plot.screenshot()
        wait(lambda plot=plot, before=before: plot.screenshot() != before)


def test_numbers_are_those_that_were_sent(page: Page, fake: FakePage) -> None:
    until(page, "document.getElementById('learned').dataset.value")
    names = ["bin", "time", "elbo", "mean-0", "mean-1"]
    read = "names => names.map(name => document.getElementById(name).dataset.value)"
    seq, *shown = map(float, page.evaluate(read, names))
    sent = fake.sent[int(seq)]
    assert shown == [sent["time"], sent["elbo"], *sent["mean"]]
    assert [value(page, name) for name in ("late", "latency-median", "latency-p99", "rate")] == [
        "3",
        "0.271",
        "0.64",
        "99.5",
    ]
    assert page.text_content("#latency-median") == "0.27 ms"
    assert page.text_content("#refused") == "1 refused, 4 unknown_unit"
    assert page.text_content("#phase") == "ready"
    assert int(value(page, "learned")) <= 0.8 * fake.seq
    assert int(value(page, "lost")) <= fake.seq // 97
    until(page, "document.getElementById('evidence-walk').dataset.value")
    # In one go: between two looks, others may have come.
    read = "name => Number(document.getElementById('evidence-' + name).dataset.value)"
    walk, initial = page.evaluate(f"['walk', 'initial'].map({read})")
    assert walk - initial == pytest.approx(0.3)


def test_freezing_asks_the_session_and_shows_what_it_says(page: Page, fake: FakePage) -> None:
    assert page.text_content("#frozen") == "learning"
    page.click("#freeze")
    until(page, "document.getElementById('frozen').textContent === 'frozen'")
    assert fake.actions[-1]["ask"] == "freeze"
    assert "Learning is frozen" in page.text_content("#words")
    page.keyboard.press("f")
    until(page, "document.getElementById('frozen').textContent === 'learning'")
    assert fake.actions[-1]["ask"] == "thaw"


def test_an_event_is_marked_from_the_keyboard(page: Page, fake: FakePage) -> None:
    page.keyboard.press("m")
    page.keyboard.type("light on, p?")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('event').textContent.includes('light on, p?')")
    assert fake.actions[-1] == {"ask": "mark", "text": "light on, p?"}
    assert page.input_value("#mark-text") == ""
    page.keyboard.press("Enter")
    says(page, "Type what happened, then mark it.")
    assert len([each for each in fake.actions if each["ask"] == "mark"]) == 1


def test_stimulation_is_stopped_even_while_typing(page: Page, fake: FakePage) -> None:
    page.focus("#mark-text")
    page.keyboard.press("Escape")
    wait(lambda: fake.actions and fake.actions[-1]["ask"] == "stop")
    until(page, "document.getElementById('words').textContent.includes('stopped')")
    page.click("#stop")
    wait(lambda: [action["ask"] for action in fake.actions[-2:]] == ["stop", "stop"])
    page.click("#arm")
    wait(lambda: fake.actions[-1]["ask"] == "arm")


def test_checkpoint_speed_and_reset_are_asked_for(page: Page, fake: FakePage) -> None:
    page.click("#save")
    wait(lambda: fake.actions[-1]["ask"] == "save")
    page.select_option("#speed", "2")
    wait(lambda: fake.actions[-1] == {"ask": "speed", "text": "2"})
    page.click("#reset")
    wait(lambda: fake.actions[-1]["ask"] == "reset")


def test_a_speed_that_is_not_on_the_menu_is_shown(page: Page, fake: FakePage) -> None:
    for speed in (0.1, 0.5):
        fake.change(speed=speed)
        until(page, "speed => document.getElementById('speed').value === String(speed)", speed)
    assert page.locator("#speed option").count() == 7


def test_a_paused_display_stands_still_and_goes_on(page: Page) -> None:
    page.keyboard.press("p")
    before, messages = value(page, "time"), page.evaluate("evkf.messages")
    until(page, "before => evkf.messages > before + 5", messages)
    assert value(page, "time") == before
    page.click("#pause")
    until(page, "before => document.getElementById('time').dataset.value !== before", before)


def test_the_view_and_the_session_are_downloaded(page: Page, tmp_path: Path) -> None:
    kept = {}
    for name in ("png", "svg", "nwb"):
        with page.expect_download() as waiting:
            page.click(f"#{name}")
        kept[name] = tmp_path / name
        waiting.value.save_as(kept[name])
        assert re.fullmatch(rf"day2-\d+s\.{name}", waiting.value.suggested_filename)
    assert kept["png"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    drawing = kept["svg"].read_text()
    assert drawing.startswith("<svg")
    assert "Phase portrait" in drawing
    assert drawing.count("<path") > 50
    assert kept["nwb"].read_bytes() == b"NWB"


def test_latents_and_horizon_are_chosen(page: Page) -> None:
    lines = "evkf.panels.latents.parts[0].lines.data.xs.length"
    assert page.evaluate(lines) == 2
    page.keyboard.press("2")
    until(page, f"{lines} === 1")
    assert page.get_attribute("#chips button:nth-child(2)", "aria-pressed") == "false"
    page.click("#chips button:nth-child(2)")
    until(page, f"{lines} === 2")
    assert page.text_content("#horizon-shown") == "0.4 s"
    for _ in range(10):
        page.keyboard.press("[")
    assert page.text_content("#horizon-shown") == "0.3 s"
    until(page, "evkf.panels.latents.parts[1].lines.data.xs[2].length === 31")


def test_keys_are_listed_and_focus_can_be_seen(page: Page) -> None:
    assert not page.is_visible("#shortcuts")
    page.keyboard.press("?")
    assert page.is_visible("#shortcuts")
    page.keyboard.press("?")
    assert not page.is_visible("#shortcuts")
    page.keyboard.press("?")
    page.keyboard.press("Escape")
    assert not page.is_visible("#shortcuts")
    page.keyboard.press("Tab")
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "3px"


def test_light_and_dark_follow_the_system_and_a_switch(browser: Any, fake: FakePage) -> None:
    theme = "document.documentElement.dataset.theme"
    with opened(browser, fake.address, color_scheme="dark") as page:
        moving(page)
        assert page.evaluate(theme) == "dark"
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        page.keyboard.press("t")
        assert page.evaluate(theme) == "light"
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != ground


def test_a_missing_token_is_said_in_words_and_can_be_given(browser: Any, fake: FakePage) -> None:
    asked = len(fake.actions)
    with opened(browser, fake.address) as page:
        moving(page)
        page.click("#freeze")
        says(page, "“freeze” was refused: the token is missing.")
        assert len(fake.actions) == asked
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#token-form", state="hidden")
        page.click("#save")
        wait(lambda: len(fake.actions) == asked + 1)


def test_a_page_that_may_not_look_asks_for_the_token(browser: Any) -> None:
    server = FakePage(channels=5, closed=True)
    try:
        with opened(browser, server.address) as page:
            says(page, "The token is missing.")
            assert page.evaluate(CUT, "#connection, header") == []
            assert not page.is_visible(".choices, #truth, #frozen, #stop")
            page.fill("#token", "00" * 32)
            page.keyboard.press("Enter")
            says(page, "The token is wrong.")
            page.fill("#token", TOKEN)
            page.keyboard.press("Enter")
            moving(page)
            assert TOKEN not in page.url
    finally:
        server.stop()


def test_it_connects_again_when_the_server_is_back(page: Page, fake: FakePage) -> None:
    fake.stop()
    says(page, "The server does not answer")
    assert page.evaluate(CUT, "#connection, header") == []
    ready = page.evaluate(COLOUR, "#phase")
    fake.start()
    says(page, "Connected again.")
    # What was shown meanwhile was old, and looked it.
    until(page, f"before => ({COLOUR})('#phase') !== before", ready)
    before = page.evaluate("evkf.store.versions.bins")
    until(page, "before => evkf.store.versions.bins > before", before)


def test_what_is_wrong_with_the_session_is_said_in_words(page: Page, fake: FakePage) -> None:
    fake.flowing = False
    says(page, "The stream has stopped: no bins for")
    fake.flowing = True
    says(page, "Live.")
    fake.report = {"phase": "ready", "why": "", "bins": 0}
    says(page, "Ready for the first bin.")
    assert page.text_content("#words").startswith("No bins have come yet.")
    fake.flowing = False
    says(page, "No bins have come yet. Is the rig sending?")
    fake.flowing, fake.report = True, {"phase": "ready", "why": ""}
    says(page, "Live.")
    fake.report = {"phase": "failed", "why": "the disk is gone"}
    says(page, "The engine has died: the disk is gone. Go on with “evkf resume out/day2”.")
    fake.report = {"phase": "ready", "why": ""}
    says(page, "Live.")
    fake.change(live=False)
    says(page, "The engine has died")
    fake.change(live=True)
    says(page, "The session was resumed.")
    taken, fake.report["bins"] = fake.seq, 10**9
    fake.report["taken"] = 10**9 - taken
    until(page, "taken => evkf.store.report.taken === taken", 10**9 - taken)
    fake.report["taken"] = 3
    says(page, "The session was resumed at bin 999,999,997.")


def test_malformed_messages_break_nothing(page: Page, fake: FakePage) -> None:
    good = fake.source.bins(10**6, 3)
    wrong = good | {"mean": np.zeros((3, 7))}
    cut = pack({"kind": "bins", "first": 10**6}, good)[:-200]
    for data in (
        b"",
        b"\xff" * 100,
        cut,
        pack({"kind": "bins", "first": 1}, wrong),
        "{",
        "[]",
        "null",
    ):
        fake.send(data)
    fake.send(pack({"kind": "field", "plane": [0, 1]}, {"x": np.zeros(1)}))
    fake.send(json.dumps({"latents": "many"}))
    says(page, "A message could not be read and was passed over")
    before = page.evaluate("evkf.frames")
    until(page, "before => evkf.frames > before + 3", before)
    assert page.text_content("#phase") == "ready"


def test_views_of_many_latents(browser: Any) -> None:
    server = FakePage(latents=6, channels=300, bin_width=0.002, truth=False)
    try:
        with opened(browser, server.address) as page:
            moving(page)
            assert not page.is_visible("#truth")
            page.select_option("#axis-0", "3")
            wait(lambda: {"plane": [3, 1]} in server.asked)
            for view in ("principal", "turning"):
                page.select_option("#view", view)
                before = page.evaluate("evkf.paints[4]")
                until(page, "before => evkf.paints[4] > before + 2", before)
            rows = page.evaluate("evkf.panels.portrait.seen.map(row => Array.from(row))")
            assert np.allclose(np.array(rows) @ np.array(rows).T, np.eye(2), atol=1e-9)
    finally:
        server.stop()


@pytest.mark.parametrize("latents", [2, 20])
def test_all_is_on_one_screen(browser: Any, latents: int) -> None:
    server = FakePage(latents, 30, truth=latents == 2)
    try:
        with opened(browser, server.address) as page:
            moving(page)
            until(page, "evkf.store.versions.field > 0 && evkf.store.versions.evidence > 0")
            # All figures are painted but that of the truth, where none is known.
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                painted = page.evaluate("evkf.paints")
                still = "evkf.paints.filter((each, k) => each <= before[k]).length"
                until(page, f"before => {still} <= {latents > 2:d}", painted)
                panels = check_boxes(page, width, height)
                assert page.evaluate(CUT, ".panel, .head, .note, .key, header, footer") == []
                check_picture(page, width, height, panels)
    finally:
        server.stop()


def check_boxes(page: Page, width: int, height: int) -> dict[str, list[float]]:
    """Where panels are: nothing is outside of the screen, no panel is over another."""
    boxes = page.evaluate("""() => [...document.querySelectorAll(
        "header, footer, .panel, button, select, input, .plot, .head, dd, .note, .key"
    )].filter((each) => each.offsetParent !== null).map((each) => {
        const { left, top, right, bottom } = each.getBoundingClientRect();
        return [each.id || each.className || each.tagName, left, top, right, bottom];
    })""")
    assert len(boxes) > 40
    for name, left, top, right, bottom in boxes:
        inside = left >= 0 and top >= 0 and right <= width and bottom <= height
        assert inside, (name, left, top, right, bottom)
    panels = [box for box in boxes if str(box[0]).startswith("panel-")]
    assert len(panels) == len(PANELS)
    for at, (name, left, top, right, bottom) in enumerate(panels):
        for other, left2, top2, right2, bottom2 in panels[at + 1 :]:
            apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
            assert apart, (name, other)
    return {name: box for name, *box in panels}


def check_picture(page: Page, width: int, height: int, panels: dict[str, list[float]]) -> None:
    """Nothing in a picture of the page is empty: every panel has colours of its own."""
    picture = imread(BytesIO(page.screenshot()))[..., :3]
    assert picture.shape[:2] == (height, width)
    for name, box in panels.items():
        left, top, right, bottom = map(int, box)
        seen = picture[top + 30 : bottom, left:right].reshape(-1, 3)
        assert len(np.unique(seen, axis=0)) > 30, name


def test_what_is_drawn_grows_with_the_screen(browser: Any, fake: FakePage) -> None:
    """A window that is moved to a projector: nothing is as small there as it was."""
    read = """() => [
        evkf.panels.latency.texts.renderer.glyph.text_font_size.value,
        evkf.panels.latents.texts.renderer.glyph.text_font_size.value,
        evkf.panels.portrait.learned.head.renderer.glyph.size.value,
        evkf.panels.evidence.lines[0].renderer.glyph.line_width.value,
    ]"""
    with opened(browser, fake.address) as page:
        moving(page)
        assert page.evaluate(read) == ["11px", "11px", 9, 2]
        page.set_viewport_size({"width": 1920, "height": 1080})
        grown = 17 / 13
        until(page, f"() => ({read})()[0] === '14px'")
        large = page.evaluate(read)
        assert large[:2] == ["14px", "14px"]
        assert large[2:] == pytest.approx([9 * grown, 2 * grown])


def test_the_newest_evidence_is_not_cut_off_at_the_border(page: Page) -> None:
    until(page, "evkf.store.evidence.last !== null && evkf.panels.evidence.ends.data.x.length")
    end, last = page.evaluate("""() => [
        evkf.panels.evidence.figure.plot.x_range.end, evkf.panels.evidence.ends.data.x[0],
    ]""")
    first = page.evaluate("evkf.panels.evidence.figure.plot.x_range.start")
    assert last + 0.02 * (last - first) < end


def test_evidence_that_comes_before_the_first_bin_waits_for_it(browser: Any) -> None:
    server = FakePage(channels=5)
    server.flowing = False
    try:
        with opened(browser, server.address) as page:
            until(page, "window.evkf?.store != null")
            of_the_last = ("cov", "ahead", "ahead_var")
            none = {
                name: each if name in of_the_last else each[:0]
                for name, each in server.source.bins(0, 1).items()
            }
            told = {"bins": 50, "model": -11.0, "random_walk": -12.0, "initial": -11.5}
            header = {"kind": "bins", "first": 0, "evidence": told}
            before = page.evaluate("evkf.messages")
            server.send(pack(header, none))
            until(page, "before => evkf.messages > before", before)
            server.flowing = True
            until(page, "evkf.panels.evidence.ends.data.x.length > 0")
            first = page.evaluate("evkf.store.evidence.rows[0]")
            assert np.isfinite(first[0])
            assert first[1:] == pytest.approx([1.0, 0.5])
            start = page.evaluate("evkf.panels.evidence.figure.plot.x_range.start")
            assert start == first[0]
    finally:
        server.stop()


def test_a_session_is_called_by_its_folder(page: Page) -> None:
    assert page.text_content("#session") == "day2"
    assert page.title() == "day2 – evkf"
    assert "a1b2" in page.get_attribute("#session", "title")


def test_what_is_not_there_yet_is_not_told_as_a_number(page: Page, fake: FakePage) -> None:
    fake.report |= {"phase": "starting", "why": "programs are being compiled", "bins": 0}
    fake.report |= {"taken": 0, "learned": 0, "acknowledged": -1}
    until(page, "document.getElementById('durable').textContent === 'none yet'")
    assert page.text_content("#latency-median") == "–"
    told = "Programs are being compiled; no bin is accepted yet. The model"
    assert page.text_content("#words").startswith(told)
    fake.report |= {"phase": "ready", "bins": 500, "taken": 100, "learned": 80}
    until(page, "document.getElementById('learned').textContent === '80 bins since the resume'")
    assert "after 80 % of bins since the resume." in page.text_content("#words")


def test_stimulation_is_not_offered_where_nothing_stimulates(page: Page, fake: FakePage) -> None:
    can = fake.hello["can"]
    fake.change(can=["mark"])
    until(page, "document.getElementById('stop').hidden")
    before = len(fake.actions)
    page.keyboard.press("Escape")
    fake.change(can=can)
    until(page, "!document.getElementById('stop').hidden")
    assert len(fake.actions) == before


def test_stimulation_is_stopped_where_the_page_is_sent_away(browser: Any) -> None:
    server = FakePage(channels=5)
    server.crowded = True
    try:
        with opened(browser, f"{server.address}/#token={TOKEN}") as page:
            says(page, "Too many are connected. Trying again…")
            assert not page.is_visible("#stop")
            page.keyboard.press("Escape")
            says(page, "Stimulation was told to stop.")
            assert [action["ask"] for action in server.actions] == ["stop"]
            says(page, "Too many are connected. Trying again…")
    finally:
        server.stop()


def test_what_was_marked_is_gone_when_numbers_begin_anew(browser: Any) -> None:
    server = FakePage(channels=5)
    server.flowing = False
    try:
        with opened(browser, server.address) as page:
            until(page, "window.evkf?.store != null")
            marked = {"marks": [{"seq": 101, "text": "before"}]}
            server.send(pack({"kind": "bins", "first": 100, **marked}, server.source.bins(100, 5)))
            until(page, "evkf.store.marks.length === 1")
            marked = {"marks": [{"seq": 1, "text": "after"}]}
            server.send(pack({"kind": "bins", "first": 0, **marked}, server.source.bins(105, 5)))
            until(page, "evkf.store.seq === 4")
            assert page.evaluate("evkf.store.marks") == marked["marks"]
            told = "words => document.getElementById('event').textContent === words"
            until(page, told, "“after” at bin 1")
            server.send(pack({"kind": "bins", "first": 0}, server.source.bins(0, 5)))
            until(page, told, "none")
    finally:
        server.stop()


def test_bins_of_which_no_counts_are_known_are_blank_until_one_is(browser: Any) -> None:
    server = FakePage(channels=5)
    server.flowing = False
    try:
        with opened(browser, server.address) as page:
            until(page, "window.evkf?.store != null")
            bins = server.source.bins(100, 50)
            bins["counts"][:30] = 255
            bins["counts"][40] = 255
            server.send(pack({"kind": "bins", "first": 100}, bins))
            until(page, "evkf.panels.raster.source.data.image.length > 0")
            seen = page.evaluate("evkf.store.counts.first * evkf.store.counts.binsPer")
            assert 128 <= seen <= 130
            painted = "Array.from(evkf.store.counts.paint((value) => value === value ? 1 : 2))"
            kinds = np.array(page.evaluate(painted)).reshape(5, -1)
            assert set(kinds[:, :10].ravel()) == {0}
            assert set(kinds[:, -1]) == {1}
    finally:
        server.stop()
