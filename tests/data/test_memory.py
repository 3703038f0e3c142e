"""Free memory: limits of control groups and of the process itself, and fits that keep to them."""

import resource
import shutil
import subprocess
import sys

import pytest

from quernel._machine import UNLIMITED, _control_group_memory, _control_groups

GB, MB = 2**30, 2**20
V1_NONE = 9223372036854771712  # what version 1 says without a limit


@pytest.fixture
def system(tmp_path):
    """A function that writes the files of a machine: mounts and groups, and the groups of this process."""

    def write(groups, mounts, **files):
        own = tmp_path / "proc/self"
        own.mkdir(parents=True)
        (own / "cgroup").write_text(groups)
        (own / "mountinfo").write_text(
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
            "35 31 0:32 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n" + mounts
        )
        for name, content in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return str(tmp_path)

    return write


V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "36 31 0:33 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory\n"


def v2(folder, maximum, used, *, high="max", cache=(0, 0), tmpfs=0):
    stat = f"anon 5\nfile {sum(cache) + tmpfs}\nactive_file {cache[0]}\ninactive_file {cache[1]}\nshmem {tmpfs}\n"
    values = {"max": maximum, "high": high, "current": used, "stat": stat}
    return {f"{folder}/memory.{name}".lstrip("/"): str(value) for name, value in values.items()}


def v1(folder, limit, used, cache=0):
    stat = f"cache 7\ninactive_file 1\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
    values = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": stat}
    return {f"memory/{folder}/memory.{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("own", "left"),
    [
        (v2("job", 2 * GB, GB), GB),
        (v2("job", "max", GB), UNLIMITED),
        (v2("job", 2 * GB, GB, high=3 * GB // 2), GB // 2),
        (v2("job", 2 * GB, 2 * GB, cache=(GB // 4, GB)), 5 * GB // 4),
        (v2("job", 2 * GB, 2 * GB, tmpfs=GB), 0),
        (v2("job", GB, 2 * GB), 0),
    ],
    ids=["limit", "none", "high", "page cache is free", "tmpfs is not", "beyond"],
)
def test_limit_of_a_control_group(system, own, left):
    assert _control_group_memory(system("0::/job\n", V2_MOUNT, **own)) == left


@pytest.mark.parametrize(("outer", "inner", "left"), [(4, 3, 2), (3, 4, 1), ("max", 3, 2), (3, "max", 1)])
def test_groups_around_limit_too(system, outer, inner, left):
    """The outer group holds 2 GB, 1 of them in the inner one."""
    limits = [one if one == "max" else one * GB for one in (outer, inner)]
    root = system(
        "0::/slice/job.scope\n", V2_MOUNT, **v2("slice", limits[0], 2 * GB), **v2("slice/job.scope", limits[1], GB)
    )
    assert _control_group_memory(root) == left * GB


@pytest.mark.parametrize(
    ("outer", "inner", "left"), [(V1_NONE, V1_NONE, UNLIMITED), (V1_NONE, 2 * GB, GB), (GB, GB, 0)]
)
def test_version_one(system, outer, inner, left):
    root = system(
        "4:memory:/user/job\n2:cpu,cpuacct:/elsewhere\n0::/\n",
        V1_MOUNT,
        **v1("", V1_NONE, 0),
        **v1("user", outer, 2 * GB),
        **v1("user/job", inner, 3 * GB // 2, cache=GB // 2),
    )
    assert _control_group_memory(root) == left


def test_a_container_sees_its_own_group_only(system):
    """Mounted at the container's group, whose path on the host is in /proc/self/cgroup, or is hidden as well."""
    for groups, top in (("0::/docker/a\n", "/docker/a"), ("0::/\n", "/"), ("0::/../b\n", "/")):
        root = system(groups, V2_MOUNT.replace(" / ", f" {top} ", 1), **v2("", 2 * GB, GB))
        assert _control_group_memory(root) == GB
        shutil.rmtree(f"{root}/proc")
        _control_groups.cache_clear()  # mounts do not change in real life


def test_nothing_is_known(tmp_path):
    assert _control_group_memory(str(tmp_path)) == UNLIMITED


FIT = """
import resource, numpy as np
from quernel import KernelQuantileRegressor, estimate_cost
from quernel.data import available_memory

n, M = 60_000, 600
rng = np.random.default_rng(0)
X = rng.normal(size=(n, 2))
y = X[:, 0] + rng.normal(size=n)
model = KernelQuantileRegressor(n_components=M, bandwidth=1.0, alpha=1e-3, random_state=0, recalibrate=False)
model.fit(X[:5_000], y[:5_000])  # loads what is loaded once
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {spare}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert available_memory() <= {spare}, available_memory()
print(estimate_cost(n, 2, M).stored)
print(model.fit(X, y).duality_gap_[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm")
@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY, reason="limited already")
def test_a_fit_keeps_to_a_limit_of_address_space():
    """RLIMIT_AS (ulimit -v) with room for the fit, and not for 288 MB of features."""
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", FIT.format(spare=210 * MB)], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    stored, gap = ran.stdout.split()
    assert stored == "False"
    assert float(gap) < 1e-4
