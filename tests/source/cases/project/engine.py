from torch.nn.utils import clip_grad_norm_


class Engine:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def step(self, tokens, offsets, labels):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(tokens, offsets), labels)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()
