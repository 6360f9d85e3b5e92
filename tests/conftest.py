"""With real profiles at hand (TRACEKIT_REAL_DATA), a skipped test is a failure: nothing may pass by not running."""

import os

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TRACEKIT_REAL_DATA"):
        report.outcome = "failed"
        report.longrepr = f"skipped although TRACEKIT_REAL_DATA is set: {report.longrepr}"
    return report
