"""Examples of the documentation pages, run as they stand."""

import re

import pytest


def printed_as_shown(page, capsys):
    """Run the examples of a page one after the other; how many words did they print, all as the page shows them?"""
    examples, shown = re.findall(r"```python\n(.*?)```", page, re.S), re.findall(r"```text\n(.*?)```", page, re.S)
    assert len(examples) == len(shown)
    namespace, count = {}, 0
    for example, then_all in zip(examples, shown, strict=True):
        exec(compile(example, "page.md", "exec"), namespace)
        now_all, then_all = capsys.readouterr().out.split(), then_all.split()
        assert len(now_all) == len(then_all)
        count += len(now_all)
        for now, then in zip(now_all, then_all, strict=True):
            decimals = re.fullmatch(r"\d+\.(\d+),?", then)
            if decimals:  # the last digit may differ from one linear algebra library to another
                last = 10.0 ** -len(decimals[1])
                assert float(now.strip(",")) == pytest.approx(float(then.strip(",")), rel=0, abs=1.1 * last)
            else:
                assert now == then
    return count
