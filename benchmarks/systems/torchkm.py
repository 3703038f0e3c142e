"""TorchKM on the processor: accelerated proximal gradients after an eigendecomposition of K."""

import contextlib
import os

from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    import torch
    from torchkm.cvkqr import cvkqr
    from torchkm.functions import rbf_kernel

    class WithoutFolds(cvkqr):
        """Its fit ends in a cross-validation that nobody asked for here."""

        def _cv_batched_lambda(self, **_: object) -> torch.Tensor:
            return torch.zeros(self.nobs, dtype=torch.double)

    X, y = torch.from_numpy(task.X), torch.from_numpy(task.y)
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        torch.set_num_threads(int(threads))

    def solve() -> cvkqr:
        # Its kernel is exp(-2 sigma d^2), its objective mean loss + (lambda / 2) a'Ka: lambda = 2 alpha.
        model = WithoutFolds(
            Kmat=rbf_kernel(X, 1 / (4 * task.bandwidth**2)), y=y, nlam=1, ulam=torch.tensor([2 * task.alpha]),
            tau=task.level, maxit=100_000, gamma=1e-8, device="cpu",
        )  # fmt: skip
        model.fit()
        return model

    with contextlib.redirect_stdout(None):  # it reports its stages there
        seconds, model = time_best(solve, task.repeats)
    intercept, weights = float(model.alpmat[0, 0]), model.alpmat[1:, 0].numpy()
    K = task.gram()
    return Answer(seconds, K @ weights + intercept, float(weights @ (K @ weights)))


KQR = System("TorchKM cvkqr, on the processor", "torchkm", _fit)
