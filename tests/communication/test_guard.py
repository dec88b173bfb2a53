"""Budgets from declared variables, pushed to whoever is registered when the phase changes."""

import gc
from datetime import timedelta
from pathlib import Path

import pytest

from moe_core.communication import guard
from moe_core.communication.guard import DEPRECATED, SERVING_VARIABLE, WARMUP_VARIABLE, GroupTimeout, TimeoutGuard

OLD_WARMUP, OLD_SERVING = DEPRECATED[WARMUP_VARIABLE], DEPRECATED[SERVING_VARIABLE]
BOTH = {WARMUP_VARIABLE: "600", SERVING_VARIABLE: "20"}


class Proxy:
    def __init__(self, name="proxy", refused=()):
        self.name, self.refused, self.given = name, refused, []

    def set_timeout_seconds(self, seconds):
        if seconds in self.refused:
            raise OSError(f"{self.name} takes no {seconds}")
        self.given.append(seconds)


class Unread(dict):
    """An environment that nobody may look into."""

    def get(self, name, default=None):
        raise AssertionError(f"{name} was read")


def guard_of(environ=BOTH, is_capturing=lambda: False):
    return TimeoutGuard(environ, is_capturing)


@pytest.mark.parametrize(
    ("environ", "budgets"),
    [
        ({}, (1800, None)),
        (BOTH, (600, 20)),
        ({WARMUP_VARIABLE: " 7 ", SERVING_VARIABLE: "\t"}, (7, None)),
        ({WARMUP_VARIABLE: "", SERVING_VARIABLE: "1800"}, (1800, 1800)),
        ({WARMUP_VARIABLE: "86400", SERVING_VARIABLE: "1"}, (86400, 1)),
    ],
)
def test_budgets(environ, budgets):
    assert guard_of(environ).budgets() == budgets


@pytest.mark.parametrize("value", ["1.5", "1e3", "0", "-3", "86401", "abc", "1 2"])
@pytest.mark.parametrize("name", [WARMUP_VARIABLE, SERVING_VARIABLE, OLD_WARMUP, OLD_SERVING])
def test_a_value_that_is_no_budget_names_its_variable(name, value):
    with pytest.raises(ValueError, match=f"^{name} is '{value}', needed whole seconds from 1 to 86400"):
        guard_of({name: value}).budgets()


@pytest.mark.parametrize("environ", [{WARMUP_VARIABLE: "5", SERVING_VARIABLE: "6"}, {SERVING_VARIABLE: "1801"}])
def test_warmup_is_not_shorter_than_serving(environ):
    with pytest.raises(ValueError, match=f"^{WARMUP_VARIABLE} is .* shorter than {SERVING_VARIABLE}"):
        guard_of(environ).budgets()


@pytest.mark.parametrize("also", [{}, {WARMUP_VARIABLE: "07"}, {WARMUP_VARIABLE: " "}])
def test_a_former_name_is_taken_with_one_warning(also):
    made = guard_of({OLD_WARMUP: "7", **also})
    with pytest.warns(FutureWarning, match=f"{OLD_WARMUP} is now called {WARMUP_VARIABLE}") as warned:
        budgets = made.budgets()
    assert len(warned) == 1
    assert made.budgets() == budgets == (7, None), "and no second warning, which would be an error"


def test_two_names_that_differ_are_refused():
    with pytest.raises(ValueError, match=f"{SERVING_VARIABLE} is 6 and {OLD_SERVING}, its former name, is 7"):
        guard_of({SERVING_VARIABLE: "6", OLD_SERVING: "7"}).budgets()


def test_budgets_are_read_once_and_errors_again():
    environ = {WARMUP_VARIABLE: "none"}
    made = guard_of(environ)
    for _ in range(2):
        with pytest.raises(ValueError, match=WARMUP_VARIABLE):
            made.budgets()
    environ[WARMUP_VARIABLE] = "7"
    assert made.budgets().warmup == 7
    environ[WARMUP_VARIABLE] = "8"
    assert made.budgets().warmup == 7


def test_a_proxy_has_the_budget_of_the_phase_from_its_registration_on():
    made, early, late = guard_of(), Proxy(), Proxy()
    made.register(early)
    made.set_warmup(True)
    made.set_warmup(True)
    made.register(late)
    made.set_warmup(False)
    assert (early.given, late.given) == ([20, 600, 20], [600, 20])


def test_without_a_serving_budget_proxies_return_to_what_is_native():
    made, proxy = guard_of({}), Proxy()
    made.register(proxy)
    with made.serving_timeouts():
        pass
    made.set_warmup(True)
    made.set_warmup(False)
    assert proxy.given == [None, 1800, None]


def test_registered_twice_it_is_told_twice_and_kept_once():
    made, proxy = guard_of(), Proxy()
    made.register(proxy)
    made.register(proxy)
    made.set_warmup(True)
    assert proxy.given == [20, 20, 600]
    made.unregister(proxy)
    made.unregister(Proxy("a stranger"))
    made.set_warmup(False)
    assert proxy.given == [20, 20, 600]


def test_a_proxy_that_refuses_is_not_registered():
    made, proxy = guard_of(), Proxy(refused=(20,))
    with pytest.raises(OSError, match="takes no 20"):
        made.register(proxy)
    made.set_warmup(True)
    assert proxy.given == []


def test_a_change_that_one_refuses_is_undone_for_the_others():
    made = guard_of()
    proxies = [Proxy("a"), Proxy("b", refused=(600,)), Proxy("c")]
    for proxy in proxies:
        made.register(proxy)
    with pytest.raises(OSError, match="b takes no 600"):
        made.set_warmup(True)
    assert [p.given for p in proxies] == [[20, 600, 20], [20], [20]]
    proxies[1].refused = ()
    made.set_warmup(True)
    assert [p.given[-1] for p in proxies] == [600] * 3


def test_proxies_are_held_weakly():
    made, proxy = guard_of(), Proxy()
    given = proxy.given
    made.register(proxy)
    del proxy
    gc.collect()
    made.set_warmup(True)
    assert given == [20]


def test_without_proxies_the_environment_stays_unread():
    made = guard_of(Unread())
    made.set_warmup(True)
    with pytest.raises(AssertionError, match="was read"):
        made.register(Proxy())


def test_nothing_changes_under_capture():
    captured = []
    made, proxy = guard_of(is_capturing=lambda: bool(captured)), Proxy()
    made.register(proxy)
    made.set_warmup(True)
    captured.append(True)
    with pytest.raises(RuntimeError, match="cannot change while a CUDA graph is captured"):
        made.set_warmup(False)
    captured.clear()
    made.set_warmup(False)
    assert proxy.given == [20, 600, 20]


@pytest.mark.parametrize("in_warmup", [True, False])
def test_serving_timeouts_end_where_they_began(in_warmup):
    made, proxy = guard_of(), Proxy()
    made.set_warmup(in_warmup)
    made.register(proxy)

    def capture():
        with made.serving_timeouts():
            assert proxy.given[-1] == 20
            raise KeyError("capture failed")

    with pytest.raises(KeyError):
        capture()
    assert proxy.given[-1] == (600 if in_warmup else 20)


def test_one_guard_serves_the_process():
    proxy = Proxy()
    guard.register(proxy)
    guard.set_warmup(True)
    with guard.serving_timeouts():
        pass
    guard.set_warmup(False)
    guard.unregister(proxy)
    serving, warmup = guard.budgets().serving, guard.budgets().warmup
    assert proxy.given == [serving, warmup, serving, warmup, serving]


def test_the_page_of_variables_names_them():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "environment-variables.md").read_text()
    assert [name for name in (*DEPRECATED, *DEPRECATED.values()) if f"`{name}`" not in page] == []


def test_a_group_waits_for_what_it_is_given_or_for_what_it_was_made_with():
    class Group:
        def set_timeout(self, timeout):
            self.timeout = timeout

    group = Group()
    proxy, made = GroupTimeout("experts", group, timedelta(seconds=90)), guard_of({})
    made.register(proxy)
    assert group.timeout == timedelta(seconds=90)
    made.set_warmup(True)
    assert group.timeout == timedelta(minutes=30)
