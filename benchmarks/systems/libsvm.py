"""scikit-learn's SVR, which is libsvm: at level 1/2 and epsilon 0 it is kernel median regression."""

import numpy as np

from quernel.bench import Answer, System, Task, time_best


def _fit(task: Task) -> Answer:
    from sklearn.svm import SVR

    if task.level != 0.5:
        raise ValueError("SVR knows level 0.5 only")
    # C sum |r| + |u|^2 / 2, and the check loss is |r| / 2: C = 1 / (4 n alpha).
    model = SVR(epsilon=0, gamma=0.5 / task.bandwidth**2, C=1 / (4 * task.n * task.alpha), cache_size=2000)
    seconds, model = time_best(lambda: model.fit(task.X, task.y), task.repeats)
    weights = np.zeros(task.n)
    weights[model.support_] = model.dual_coef_[0]
    return Answer(seconds, model.predict(task.X), float(weights @ (task.gram() @ weights)))


SVR = System("scikit-learn SVR, epsilon 0 (libsvm)", "scikit-learn", _fit)
