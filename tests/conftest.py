"""One thread for each test process: the processes already fill the cores."""

import torch

torch.set_num_threads(1)
