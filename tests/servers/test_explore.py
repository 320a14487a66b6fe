import time
import numpy as np, pytest
from live import *
from spantrace.spans import SPAN_NAMES, Track

CONFS = [dict(method="dflash", acceptance=(.9,.6,.3)), dict(method="dflash", acceptance=(.9,.6,.3), async_scheduling=True), dict(method="eagle3"), dict(method="draft_model"),
 dict(method="ngram", extra_args=("--api-server-count","2")), dict(method=None), dict(method="dflash", target="nemotron"), dict(method="dflash", runner="V2", acceptance=(.9,.6,.3)), dict(method="dspark", runner="V2", acceptance=(.9,.6,.3))]

@pytest.mark.parametrize("c", CONFS, ids=lambda c: "-".join(map(str,c.values())))
def test_x(serve, witness, tmp_path, c):
    t=time.time(); s=serve(**c); print("\nup", time.time()-t)
    w = witness(s)
    print([(p.pid, p.cmdline()) for p in s.processes()])
    t=time.time(); w.remember(); print("remember", time.time()-t)
    t=time.time()
    n = 16 if c.get("runner")=="V2" else 40
    before = s.speculation()
    def run():
        s.complete(max_tokens=n); 
        from cpu_server.client import PROMPTS
        s.complete(PROMPTS[:4], max_tokens=n)
        print("changed", len(w.changed()))
    r = record(s, tmp_path/"a.spantrace", run)
    print("changed after", w.changed(), time.time()-t)
    print(s.speculation()-before, r.cycles.drafting.sum(), r.cycles.drafted.sum(0), r.cycles.accepted.sum(0), r.header["left_out"])
    print(kinds(r), len(r.cycles))
    print(r.header["server"]); print(r.header["processes"], r.header["lanes"], r.header["notes"])
    from spantrace.spans import Kind
    st = r.of_kind()
    for name in SPAN_NAMES:
        print(f"   {name:28}", np.unique(st.calls(name), return_counts=True), np.nanmedian(st.durations(name))/1e6 if st.calls(name).any() else None)
    print(len(w.observed()) and w.observed()[-5:])
