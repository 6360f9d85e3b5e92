"""Whatever rows a trace holds, every question has an answer or a reason, and shares are shares."""

import pytest
from chrome_builder import BACKWARD, BASE_NS, MAIN, annotation, kernel, launch, memcpy, memory, memset, op, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.pipeline.run import Options, analyze_uncached

TIMES = st.sampled_from((0, 1, 5, 20, 99, 100, 180))
LENGTHS = st.sampled_from((0, 0, 1, 5, 20, 100, 250))
LINKS = st.sampled_from((None, 1, 2, 3))
COPIES = st.sampled_from(("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "odd", ""))
RANGES = st.sampled_from(("gen", "actor_update", "update_actor", "mini_batch0", "mine/own", "", "nccl:x"))
ITERATIONS = st.sampled_from(
    ("execute_context_1(512)_generation_63(63)", "execute_context_0(0)_generation_2(2)", "execute_new_1_cached_2",
     "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "execute_new_x_cached_",
     "step[DECODE bs=8]", "step[EXTEND bs=2 toks=1025]", "step[MIXED bs=3 g=1 c=2]", "step[IDLE]", "step[DRAFT bs=1]",
     "step[DECODE bs=99999999999999999999]")
)  # fmt: skip

ROWS = st.lists(
    st.one_of(
        st.builds(step, st.integers(0, 2), TIMES, LENGTHS),
        st.builds(annotation, RANGES, TIMES, LENGTHS, st.sampled_from((MAIN, BACKWARD))),
        st.builds(annotation, ITERATIONS, TIMES, LENGTHS, st.sampled_from((MAIN, BACKWARD))),
        st.builds(op, st.sampled_from(("a", "b")), TIMES, LENGTHS),
        st.builds(launch, TIMES, st.integers(1, 3), LENGTHS),
        st.builds(kernel, st.sampled_from(("k", "nccl_x")), TIMES, LENGTHS, LINKS, st.integers(0, 1)),
        st.builds(memcpy, COPIES, TIMES, LENGTHS, st.sampled_from((0, 1, 10**8, None, "5")), LINKS),
        st.builds(memset, TIMES, LENGTHS, st.just(4), LINKS),
        st.builds(memory, TIMES, st.sampled_from((5, -5, 0)), st.just(5)),
    ),
    max_size=14,
)
NAMES = st.sampled_from(
    ("rank{}.json", "trace{}.json", "actor_train_step1_rank{0}-of-2_pid{0}_20260101000000000.json",
     "critic_critic-update_step1_rank{0}-of-2_pid{0}_20260101000000000.json",
     "agent_loop_rollout_replica_{0}/async_llm_rank0.json")
)  # fmt: skip
FILES = st.lists(st.tuples(NAMES, ROWS, st.sampled_from((BASE_NS, None))), min_size=1, max_size=2)


@settings(max_examples=6, deadline=None)
@given(FILES)
def test_no_question_fails_on_any_trace(tmp_path_factory, files):
    answered(tmp_path_factory, files)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(FILES)
def test_no_question_fails_on_many_traces(tmp_path_factory, files):
    answered(tmp_path_factory, files)


def answered(tmp_path_factory, files):
    """No section of the report on these files fails, and shares are shares."""
    folder = tmp_path_factory.mktemp("any")
    for rank, (name, rows, base_ns) in enumerate(files):
        write(folder / name.format(rank), rows, base_ns=base_ns)
    report = analyze_uncached(folder, Options(jobs=1)).report
    assert [(s.id, s.reason) for s in report.sections if s.status == "failed"] == []
    assert [r.message for r in report.remarks if r.severity == "error"] == []
    for metric in report.headline:
        if metric.unit == "ratio" and metric.value is not None:
            assert -1e-9 <= metric.value <= 1 + 1e-9
    for finding in report.findings:
        assert finding.cost_ns is None or finding.cost_ns >= 0
        assert finding.claim
