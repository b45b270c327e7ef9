"""Nothing is skipped, except where root is needed."""

import pytest

pytest_plugins = ["pytester"]

SKIPPING = """
    import pytest

    @pytest.mark.root
    def test_root(): ...

    def test_tool(): pytest.skip("no such tool")

    @pytest.mark.skipif(True, reason="not today")
    def test_condition(): ...

    @pytest.mark.xfail
    def test_expected(): assert False
"""


def test_other_skips_fail(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    pytester.makepyfile(test_some=SKIPPING, test_module="import pytest\npytest.importorskip('no_such_package')")
    ran = pytester.inline_run("-p", "tests.conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors")
    passed, skipped, failed = ran.listoutcomes()
    assert not passed
    assert [
        (report.nodeid.rpartition("::")[2], report.longrepr[2]) for report in skipped if "wasxfail" not in vars(report)
    ] == [("test_root", "Skipped: needs root")]
    reasons = {report.nodeid.rpartition("::")[2]: str(report.longrepr) for report in failed}
    assert set(reasons) == {"test_tool", "test_condition", "test_module.py"}
    assert "'no such tool': only 'needs root' is allowed" in reasons["test_tool"]
