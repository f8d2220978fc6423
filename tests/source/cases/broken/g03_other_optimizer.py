import torch
from torch import nn

encoder, head = nn.Linear(8, 8), nn.Linear(8, 2)
encoder_opt = torch.optim.Adam(encoder.parameters(), lr=1e-4)
head_opt = torch.optim.Adam(head.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for step in range(100):
    encoder_opt.zero_grad()
    head_opt.zero_grad()
    loss = nn.functional.mse_loss(head(torch.relu(encoder(torch.randn(4, 8)))), torch.zeros(4, 2))
    scaler.scale(loss).backward()
    scaler.unscale_(encoder_opt)
    nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    scaler.step(encoder_opt)
    nn.utils.clip_grad_norm_(head.parameters(), 0.5)  # finding: clip-scaled-gradients
    scaler.step(head_opt)
    scaler.update()
