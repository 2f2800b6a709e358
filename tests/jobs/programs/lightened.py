"""A script for Lightning's `Trainer`, which starts no process where ranks have been started already."""

import os

import pytorch_lightning as lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = ((self.line(batch[0]) - batch[0].sum(1, keepdim=True)) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    lightning.seed_everything(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Line(), loader)
    loss = float(trainer.callback_metrics["loss"])
    print(f"{trainer.global_rank}/{trainer.world_size} batches {trainer.num_training_batches} losses {loss}")
