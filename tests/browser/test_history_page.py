"""The simulator's page of one history, in a real browser: Chromium, headless."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.simulation.history import Result
from tests.simulation.page import write_page
from tests.simulation.plan import Plan
from tests.simulation.world import Happening

pytestmark = pytest.mark.once


def test_a_history_is_stepped_by_hand(chromium: webdriver.Chrome, tmp_path: Path) -> None:
    """Each process has a lane, whatever its run; a step shows what happened until then, in its lane."""
    happenings = (
        Happening(0.0, "process 1.1", "asks for order-0 </script>"),
        Happening(1.5, "service", "made t-1"),
        Happening(2.0, "process 1.2", "begins"),
        Happening(90_000.0, "laws", "LAW BROKEN: order-0 was made twice"),
    )
    result = Result(
        plan=Plan.drawn("7"),
        happenings=happenings,
        broken=("order-0 was made twice",),
        digest="0",
        hours=25.0,
        seconds=1.0,
        payments=2,
        requests=3,
        faults={"crash": 1},
    )
    write_page(result, tmp_path / "page.html")
    chromium.get((tmp_path / "page.html").as_uri())

    def lanes() -> list[str]:
        return [" ".join(each.text.split()) for each in chromium.find_elements(By.TAG_NAME, "section")]

    first = "process 1 0d 00:00:00.000 process 1.1 asks for order-0 </script>"
    assert chromium.title == "Seed 7"
    assert "Faults: 1 crash. Laws broken: 1." in chromium.find_element(By.TAG_NAME, "body").text
    assert lanes() == ["laws", first, "service"]
    chromium.find_element(By.ID, "next").click()
    assert lanes() == ["laws", first, "service 0d 00:00:01.500 service made t-1"]
    chromium.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert lanes()[0] == "laws 1d 01:00:00.000 laws LAW BROKEN: order-0 was made twice"
    assert lanes()[1] == f"{first} 0d 00:00:02.000 process 1.2 begins"
    chromium.find_element(By.ID, "back").click()
    assert chromium.find_element(By.ID, "at").text == "3 of 4, 0d 00:00:02.000"
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
