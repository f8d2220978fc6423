import torch
from torch import nn

torch.manual_seed(0)
embed, conv, head = nn.Embedding(100, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 10)
embed.num_embeddings = 200  # finding: freeze-without-effect
conv.out_channels = 16  # finding: freeze-without-effect
head.out_features = 2  # finding: freeze-without-effect
model = nn.ModuleList([embed, conv, head])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    tokens, y = torch.randint(0, 100, (4, 6)), torch.randint(0, 2, (4,))
    optimizer.zero_grad()
    hidden = conv(embed(tokens).transpose(1, 2)).mean(2)
    nn.functional.cross_entropy(head(hidden), y).backward()
    optimizer.step()
