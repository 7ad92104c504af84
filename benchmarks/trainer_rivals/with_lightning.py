"""Lightning's Trainer with its DDP strategy; logging, checkpoints, progress bar and sanity checks are off."""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trainer_rivals import workload as w


class Module(lightning.LightningModule):
    """The model with its loss and optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.criterion = w.model(), nn.CrossEntropyLoss()
        self.clock = w.Clock()
        self.total = torch.zeros(())

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        """Return the batch's loss."""
        inputs, targets = batch
        loss: Tensor = self.criterion(self.network(inputs), targets)
        self.total += loss.detach()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the same optimizer as the others."""
        return torch.optim.SGD(self.parameters(), lr=w.LEARNING_RATE, momentum=w.MOMENTUM)

    def on_train_epoch_start(self) -> None:
        """Start the clock."""
        self.total = torch.zeros(())
        self.clock.start()

    def on_train_epoch_end(self) -> None:
        """Stop the clock."""
        self.clock.stop(float(self.total) / self.trainer.num_training_batches)


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    loader = DataLoader(w.Images(), batch_size=w.BATCH_PER_RANK, shuffle=True, num_workers=w.WORKERS)
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=w.EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)


if __name__ == "__main__":
    main()
