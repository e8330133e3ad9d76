"""The only home of `torch.distributed`: groups, attention over a CP group, loss scaling, agreement."""
