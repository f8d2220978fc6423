import torch.nn as nn

LABEL_SMOOTHING = 0.1


def make_criterion():
    return nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
