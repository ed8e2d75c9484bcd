"""What holds for every test: one thread, since the processes already fill the cores, and one state of the generator."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Initial weights and made-up images do not depend on which tests ran before; noise is drawn from elsewhere."""
    torch.manual_seed(4021)  # unlike the seeds of single tests
