"""A script for Hugging Face's `accelerate launch`: a data set that is divided, a step, and a gathered loss."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
rows = torch.randn(64, 4)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(4, 1)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for x, y in loader:
    loss = ((model(x) - y) ** 2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
losses = accelerator.gather(loss.detach().reshape(1))
print(f"{accelerator.process_index}/{accelerator.num_processes} batches {len(loader)} losses {losses.tolist()}")
