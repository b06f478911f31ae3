"""One thread for torch: on busy machines its threads wait for each other longer than small tiles take."""

import torch

torch.set_num_threads(1)
