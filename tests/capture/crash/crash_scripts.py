"""Small training scripts that crash, in the styles people write, each with the rule that explains it."""

from __future__ import annotations

from typing import NamedTuple


class Explained(NamedTuple):
    """A script whose guilty line ends in `# here`, and what must be said of it."""

    name: str
    rule: str
    says: tuple[str, ...]
    code: str


EXPLAINED = (
    Explained(
        "labels from 1",
        "O14",
        ("from 1 to 5", "5 classes", "`stars - 1`"),
        """
        x, stars = torch.randn(64, 8), torch.arange(64) % 5 + 1
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        criterion = nn.CrossEntropyLoss()
        loss = criterion(model(x), stars)  # here
        """,
    ),
    Explained(
        "one id too many",
        "O14",
        ("from 0 to 5", "6 outputs"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(8, 5)

            def forward(self, x, labels):
                logits = self.out(x)
                return F.cross_entropy(logits, labels)  # here

        Net()(torch.randn(60, 8), torch.arange(60) % 6)
        """,
    ),
    Explained(
        "a void label",
        "O14",
        ("ignore_index=255",),
        """
        mask = torch.randint(0, 3, (2, 8, 8))
        mask[:, :2] = 255
        F.cross_entropy(nn.Conv2d(3, 3, 1)(torch.randn(2, 3, 8, 8)), mask)  # here
        """,
    ),
    Explained(
        "minus one and one",
        "O14",
        ("(y + 1) // 2",),
        """
        y = torch.arange(10) % 2 * 2 - 1
        F.nll_loss(nn.Linear(4, 2)(torch.randn(10, 4)).log_softmax(1), y)  # here
        """,
    ),
    Explained(
        "one output for two classes",
        "O14",
        ("1 class.", "binary_cross_entropy_with_logits"),
        """
        y = torch.arange(10) % 2
        F.cross_entropy(nn.Linear(4, 1)(torch.randn(10, 4)), y)  # here
        """,
    ),
    Explained(
        "ids with gaps, some ignored",
        "O14",
        ("from 10 to 30", "return_inverse=True"),
        """
        y = torch.tensor([10, 20, 30, -100, 10])
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(5, 4)), y)  # here
        """,
    ),
    Explained(
        "ids as floats from a loader",
        "O14",
        ("float32", "`batch['y'].long()`"),
        """
        batch = {"x": torch.randn(6, 4), "y": torch.zeros(6)}
        F.cross_entropy(nn.Linear(4, 3)(batch["x"]), batch["y"])  # here
        """,
    ),
    Explained(
        "int32 ids of numpy",
        "O14",
        ("int32", "`labels.long()`"),
        """
        import numpy as np
        labels = torch.from_numpy(np.zeros(6, dtype=np.int32))
        nn.CrossEntropyLoss()(nn.Linear(4, 3)(torch.randn(6, 4)), labels)  # here
        """,
    ),
    Explained(
        "a column of ids",
        "O14",
        ("(6, 1)", "`y.squeeze(1)`"),
        """
        y = torch.zeros(6, 1, dtype=torch.long)
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(6, 4)), y)  # here
        """,
    ),
    Explained(
        "one-hot of another width",
        "O14",
        ("(6, 4)", "argmax(1)", "4 outputs"),
        """
        y = torch.eye(4)[torch.zeros(6, dtype=torch.long)]
        F.cross_entropy(nn.Linear(4, 3)(torch.randn(6, 4)), y)  # here
        """,
    ),
    Explained(
        "scores of a sequence with the classes last",
        "O14",
        ("(2, 7, 5)", "`logits.reshape(-1, 5)`", "`tokens.reshape(-1)`"),
        """
        tokens = torch.zeros(2, 7, dtype=torch.long)
        logits = nn.Linear(4, 5)(torch.randn(2, 7, 4))
        loss = F.cross_entropy(logits, tokens)  # here
        """,
    ),
    Explained(
        "a view that mixes the batch",
        "O14",
        ("scores for 16 rows", "4 labels", "flatten(1)"),
        """
        x, y = torch.randn(4, 4, 2, 2), torch.zeros(4, dtype=torch.long)
        F.cross_entropy(nn.Linear(4, 3)(x.view(-1, 4)), y)  # here
        """,
    ),
    Explained(
        "mask with a channel",
        "O14",
        ("(2, 1, 4, 4)", "squeeze(1).long()"),
        """
        mask = torch.zeros(2, 1, 4, 4, dtype=torch.long)
        F.cross_entropy(torch.randn(2, 3, 4, 4), mask)  # here
        """,
    ),
    Explained(
        "binary targets as integers",
        "M19",
        ("int64", "`y.float()`"),
        """
        y = torch.arange(6) % 2
        nn.BCEWithLogitsLoss()(nn.Linear(4, 1)(torch.randn(6, 4)).squeeze(-1), y)  # here
        """,
    ),
    Explained(
        "binary loss of a column",
        "M01",
        ("(6, 1)", "`y` of shape (6,)", ".squeeze(-1)`"),
        """
        y = torch.ones(6)
        out = nn.Linear(4, 1)(torch.randn(6, 4))
        loss = F.binary_cross_entropy_with_logits(out, y)  # here
        """,
    ),
    Explained(
        "targets of another size",
        "M18",
        ("(6, 3)", "(6, 5)"),
        """
        y = torch.randn(6, 5)
        out = nn.Linear(4, 3)(torch.randn(6, 4))
        loss = F.mse_loss(out, y)  # here
        """,
    ),
    Explained(
        "double from numpy",
        "M19",
        ("`net[0]` (Linear)", "float64", "`x.float()`"),
        """
        import numpy as np
        x = torch.from_numpy(np.random.rand(4, 8))
        net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
        out = net(x)  # here
        """,
    ),
    Explained(
        "images as bytes",
        "M19",
        ("`conv` (Conv2d)", "uint8", "/ 255"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 4, 3)

            def forward(self, images):
                return self.conv(images)  # here

        Net()(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
        """,
    ),
    Explained(
        "half weights, whole inputs",
        "M19",
        ("float16 weights", "autocast"),
        """
        model = nn.Linear(8, 4).half()
        x = torch.randn(2, 8)
        model(x)  # here
        """,
    ),
    Explained(
        "ids of an embedding as floats",
        "M19",
        ("`embed` (Embedding)", "`tokens.long()`"),
        """
        embed, tokens = nn.Embedding(10, 4), torch.zeros(2, 3)
        embed(tokens)  # here
        """,
    ),
    Explained(
        "features after a convolution",
        "M18",
        ("`fc1` (Linear) takes 512 features but got 4608", "(8, 4608)", "nn.Linear(4608, 10)"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(1, 32, 3, padding=1)
                self.fc1 = nn.Linear(512, 10)

            def forward(self, x):
                x = F.max_pool2d(torch.relu(self.conv(x)), 2)
                x = torch.flatten(x, 1)
                return self.fc1(x)  # here

        Net()(torch.randn(8, 1, 24, 24))
        """,
    ),
    Explained(
        "flatten is missing",
        "M18",
        ("`model[2]` (Linear) takes 144 features", "flatten(1)"),
        """
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Linear(144, 10))
        model(torch.randn(2, 1, 8, 8))  # here
        """,
    ),
    Explained(
        "a view of the wrong size",
        "M18",
        ("(3, 4, 5, 5)", "100 numbers per sample", "in_features=100"),
        """
        x = torch.randn(3, 4, 5, 5)
        x = x.view(-1, 4 * 6 * 6)  # here
        """,
    ),
    Explained(
        "channels last",
        "M18",
        ("takes 3 channels but got 32", "`images.permute(0, 3, 1, 2)`"),
        """
        conv, images = nn.Conv2d(3, 8, 3), torch.randn(4, 32, 32, 3)
        conv(images)  # here
        """,
    ),
    Explained(
        "no axis of channels",
        "M18",
        ("takes 1 channel but", "`digits.unsqueeze(1)`"),
        """
        conv, digits = nn.Conv2d(1, 8, 3), torch.randn(16, 28, 28)
        conv(digits)  # here
        """,
    ),
    Explained(
        "a batch of one in BatchNorm",
        "M18",
        ("(1, 3)", "drop_last=True"),
        """
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.randn(9, 3), torch.randn(9, 1)), batch_size=4)
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)  # here
            loss.backward()
            optimizer.step()
        """,
    ),
    Explained(
        "features of a recurrent layer",
        "M18",
        ("takes 8 features per position but got 9", "input_size=9"),
        """
        lstm = nn.LSTM(8, 4, batch_first=True)
        out, _ = lstm(torch.randn(2, 5, 9))  # here
        """,
    ),
    Explained(
        "the state of a batch of another size",
        "M18",
        ("(3, 5, 8)", "expected hidden[0] size (1, 3, 4), got [1, 4, 4]"),
        """
        lstm = nn.LSTM(8, 4, batch_first=True)
        state = torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)
        lstm(torch.randn(4, 5, 8), state)
        lstm(torch.randn(3, 5, 8), state)  # here
        """,
    ),
    Explained(
        "queries and keys of the same shape",
        "M18",
        ("`q` (2, 5, 8)", "`q @ k.transpose(-2, -1)`"),
        """
        x = torch.randn(2, 5, 8)
        q, k = nn.Linear(8, 8)(x), nn.Linear(8, 8)(x)
        scores = q @ k  # here
        """,
    ),
    Explained(
        "a loss that is not a number",
        "M18",
        ("(6,)", "`loss.mean().backward()`"),
        """
        y = torch.zeros(6, dtype=torch.long)
        loss = F.cross_entropy(nn.Linear(4, 3)(torch.randn(6, 4)), y, reduction="none")
        loss.backward()  # here
        """,
    ),
    Explained(
        "a word outside the vocabulary",
        "M20",
        ("10 rows", "0 to 12", "nn.Embedding(13, 4)"),
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(10, 4)

            def forward(self, tokens):
                return self.embedding(tokens).mean(1)  # here

        Model()(torch.tensor([[0, 3], [12, 1]]))
        """,
    ),
    Explained(
        "a hidden state carried over",
        "M15",
        ("`hidden`", "hidden.detach()"),
        """
        rnn, head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.01)
        hidden = None
        for step in range(5):
            x = torch.randn(2, 4, 3)
            out, hidden = rnn(x, hidden)  # here
            loss = F.mse_loss(head(out[:, -1]), x.sum((1, 2)).unsqueeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
    ),
    Explained(
        "a hidden state kept on the model",
        "M15",
        ("`model.hidden`",),
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 1)
                self.hidden = None

            def forward(self, x):
                out, self.hidden = self.rnn(x, self.hidden)
                return self.head(out[:, -1])

        def train(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for step in range(5):
                x = torch.randn(2, 4, 3)
                loss = F.mse_loss(model(x), x.sum((1, 2)).unsqueeze(1))
                optimizer.zero_grad()
                loss.backward()  # here
                optimizer.step()

        train(Model())
        """,
    ),
    Explained(
        "features computed once",
        "M15",
        ("`features`", "before the loop"),
        """
        encoder, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        features = encoder(x)
        for step in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(head(features), y)
            loss.backward()  # here
            optimizer.step()
        """,
    ),
    Explained(
        "a generator trained through a used graph",
        "M15",
        ("`fake`", "`fake.detach()`"),
        """
        G, D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)), nn.Linear(4, 1)
        g_opt, d_opt = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for step in range(3):
            fake = G(torch.randn(8, 2))
            d_opt.zero_grad()
            d_loss = F.softplus(D(fake)).mean() + F.softplus(-D(torch.randn(8, 4))).mean()
            d_loss.backward()
            d_opt.step()
            g_opt.zero_grad()
            g_loss = F.softplus(-D(fake)).mean()
            g_loss.backward()  # here
            g_opt.step()
        """,
    ),
    Explained(
        "a growing sum of losses",
        "M15",
        ("`total` adds up losses",),
        """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        total = 0
        for step in range(5):
            x = torch.randn(8, 4)
            total += F.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            total.backward()  # here
            optimizer.step()
        """,
    ),
    Explained(
        "two losses of one forward pass",
        "M15",
        ("`out` is used by this loss and by another one",),
        """
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        out = model(torch.randn(8, 4))
        first, second = out[:, 0].pow(2).mean(), out[:, 1].pow(2).mean()
        optimizer.zero_grad()
        first.backward()
        second.backward()  # here
        optimizer.step()
        """,
    ),
    Explained(
        "a layer that works in place",
        "M16",
        ("output of Sigmoid", "`2` without inplace=True"),
        """
        model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.ReLU(inplace=True), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()  # here
        """,
    ),
    Explained(
        "backward twice",
        "M15",
        ("called twice on the same graph",),
        """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = F.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        loss.backward()
        loss.backward()  # here
        optimizer.step()
        """,
    ),
    Explained(
        "an output changed in place",
        "M16",
        ("`gate` is changed in place",),
        """
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        gate = torch.sigmoid(model(torch.randn(8, 4)))
        gate += 1  # here
        optimizer.zero_grad()
        gate.mean().backward()
        optimizer.step()
        """,
    ),
    Explained(
        "changed inside forward",
        "M16",
        ("output of Exp",),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                h = torch.exp(self.fc(x))
                h[:, 0] = 0  # here
                return h.sum()

        model = Net()
        model(torch.randn(2, 4)).backward()
        """,
    ),
    Explained(
        "stepped before the second backward",
        "M16",
        ("`1.weight`", "optimizer.step()"),
        """
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out = model(torch.randn(6, 4))
        first, second = out[:, 0].mean(), out[:, 1].mean()
        first.backward(retain_graph=True)
        optimizer.step()
        second.backward()  # here
        """,
    ),
    Explained(
        "an update by hand",
        "M16",
        ("`w` requires a gradient", "torch.no_grad()"),
        """
        w = torch.randn(4, requires_grad=True)
        loss = (torch.randn(8, 4) @ w).pow(2).mean()
        loss.backward()
        w -= 0.1 * w.grad  # here
        """,
    ),
    Explained(
        "a model without values",
        "M17",
        ("meta",),
        """
        with torch.device("meta"):
            model = nn.Linear(8, 3)
        x = torch.randn(4, 8)
        model(x)  # here
        """,
    ),
    Explained(
        "another number of classes",
        "O20",
        ("head.weight is (10, 4) in the checkpoint and (3, 4)", "v.shape == own[k].shape"),
        """
        class Net(nn.Module):
            def __init__(self, classes):
                super().__init__()
                self.body, self.head = nn.Linear(4, 4), nn.Linear(4, classes)

        state = Net(10).state_dict()
        result = Net(3).load_state_dict(state, strict=False)  # here
        print(result)
        """,
    ),
    Explained(
        "saved from DataParallel",
        "O20",
        ("'module.'", "0 of the 2 keys", "removeprefix('module.')"),
        """
        state = {f"module.{key}": value for key, value in nn.Linear(4, 3).state_dict().items()}
        nn.Linear(4, 3).load_state_dict(state)  # here
        """,
    ),
    Explained(
        "a checkpoint with more than the weights",
        "O20",
        ("its entry 'model'", "checkpoint['model']"),
        """
        checkpoint = {"epoch": 3, "model": nn.Linear(4, 3).state_dict()}
        nn.Linear(4, 3).load_state_dict(checkpoint)  # here
        """,
    ),
    Explained(
        "an optimizer of nothing",
        "O02",
        ("given no parameters",),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(4, 4), nn.Linear(4, 1)]

        optimizer = torch.optim.Adam(Net().parameters())  # here
        """,
    ),
    Explained(
        "more than there is memory",
        "M21",
        ("PiB",),
        """
        x = torch.empty(2**50)  # here
        """,
    ),
    Explained(
        "a tuple for the loss",
        "M19",
        ("`out` is a tuple that holds 2 tensors", "cross_entropy", "`out[0]`", "(8, 3)"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                scores = self.fc(x)
                return scores, scores.mean()

        out = Net()(torch.randn(8, 4))
        y = torch.zeros(8, dtype=torch.long)
        loss = F.cross_entropy(out, y)  # here
        """,
    ),
    Explained(
        "a dict for the loss",
        "M19",
        ("`out` is a dict", "mse_loss", "`out['pose']`"),
        """
        out = {"pose": nn.Linear(4, 3)(torch.randn(8, 4)), "scale": torch.ones(())}
        loss = nn.MSELoss()(out, torch.randn(8, 3))  # here
        """,
    ),
    Explained(
        "an object for the loss",
        "M19",
        ("an Output that holds 2 tensors", "`out.logits` or `out.hidden`"),
        """
        import dataclasses

        @dataclasses.dataclass
        class Output:
            logits: torch.Tensor
            hidden: torch.Tensor

        out = Output(torch.randn(8, 3), torch.randn(8, 4))
        loss = nn.CrossEntropyLoss()(out, torch.zeros(8, dtype=torch.long))  # here
        """,
    ),
    Explained(
        "the state of a recurrent layer too",
        "M19",
        ("`h` is a tuple", "`fc` (Linear)", "`h[0]`"),
        """
        lstm, fc = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)
        h = lstm(torch.randn(2, 5, 4))
        out = fc(h)  # here
        """,
    ),
    Explained(
        "a recurrent layer in a Sequential",
        "M19",
        ("The input of `model[1]` (Linear) is a tuple", "`[0]`"),
        """
        model = nn.Sequential(nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2))
        out = model(torch.randn(2, 5, 4))  # here
        """,
    ),
    Explained(
        "a loss beside the scores",
        "M19",
        ("`loss` is a tuple", "`loss[0]`", "one number"),
        """
        scores = nn.Linear(4, 3)(torch.randn(8, 4))
        loss = F.cross_entropy(scores, torch.zeros(8, dtype=torch.long)), scores
        loss.backward()  # here
        """,
    ),
    Explained(
        "a forward without return",
        "M19",
        ("`model(x)` is None", "return"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                x = self.fc(x)

        model, x, y = Net(), torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
        loss = F.cross_entropy(model(x), y)  # here
        """,
    ),
    Explained(
        "labels of numpy",
        "M19",
        ("`y` is an ndarray", "torch.from_numpy(y)"),
        """
        import numpy as np
        y = np.zeros(8, dtype=np.int64)
        loss = nn.CrossEntropyLoss()(nn.Linear(4, 3)(torch.randn(8, 4)), y)  # here
        """,
    ),
    Explained(
        "labels as words",
        "M19",
        ("`y` is a tuple of str", "Map the words to numbers"),
        """
        y = ("cat", "dog")
        loss = nn.CrossEntropyLoss()(nn.Linear(4, 3)(torch.randn(2, 4)), y)  # here
        """,
    ),
    Explained(
        "a number for a target",
        "M19",
        ("`1.0` is a float", "torch.full_like(scores, 1.0)"),
        """
        scores = nn.Linear(4, 1)(torch.randn(8, 4))
        loss = F.binary_cross_entropy_with_logits(scores, 1.0)  # here
        """,
    ),
    Explained(
        "backward of a number",
        "O03",
        ("`loss`", "plain number", "item()"),
        """
        model = nn.Linear(4, 1)
        loss = model(torch.randn(8, 4)).mean().item()
        loss.backward()  # here
        """,
    ),
    Explained(
        "raw scores for a loss of probabilities",
        "O13",
        ("`scores` from -", "not probabilities", "binary_cross_entropy_with_logits"),
        """
        y = (torch.arange(8) % 2).float()
        scores = 5 * nn.Linear(4, 1)(torch.randn(8, 4)).squeeze(-1)
        loss = nn.BCELoss()(scores, y)  # here
        """,
    ),
    Explained(
        "classes 1 and 2 for a binary loss",
        "O13",
        ("`y` from 1 to 2", "`y - 1`"),
        """
        y = (torch.arange(8) % 2).float() + 1
        loss = F.binary_cross_entropy(torch.full((8,), 0.5, requires_grad=True), y)  # here
        """,
    ),
    Explained(
        "classes -1 and 1, behind a sigmoid that is right",
        "O13",
        ("`y` from -1 to 1", "`(y + 1) / 2`"),
        """
        y = (torch.arange(8) % 2).float() * 2 - 1
        out = torch.sigmoid(nn.Linear(4, 1)(torch.randn(8, 4)).squeeze(-1))
        loss = F.binary_cross_entropy(out, y)  # here
        """,
    ),
    Explained(
        "NaN for a loss of probabilities",
        "G10",
        ("12.5 % of the prediction", "`x` already holds such values"),
        """
        model, y = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), torch.ones(8, 1)
        x = torch.randn(8, 4)
        x[3, 2] = float("nan")
        loss = nn.BCELoss()(model(x), y)  # here
        """,
    ),
    Explained(
        "an index with an axis too few",
        "M18",
        ("`actions` of shape (8,)", "`q` of shape (8, 2)", "`actions.unsqueeze(1)`", "`.squeeze(1)`"),
        """
        q, actions = nn.Linear(4, 2)(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)
        picked = q.gather(1, actions)  # here
        """,
    ),
    Explained(
        "one-hot by scatter",
        "M18",
        ("`labels` of shape (8,)", "`labels.unsqueeze(1)`", "one_hot"),
        """
        labels = torch.zeros(8, dtype=torch.long)
        rows = torch.zeros(8, 3).scatter_(1, labels, 1.0)  # here
        """,
    ),
    Explained(
        "an index of floats",
        "M19",
        ("`actions`", "float32", "`actions.long()`"),
        """
        q, actions = nn.Linear(4, 2)(torch.randn(8, 4)), torch.zeros(8, 1)
        picked = q.gather(1, actions)  # here
        """,
    ),
    Explained(
        "a view of what has no name",
        "M18",
        ("14400 numbers, 1800 for each of 8", "in_features=1800"),
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(1, 8, 3)

            def forward(self, x):
                return F.max_pool2d(self.conv(x), 2).view(-1, 8 * 13 * 13)  # here

        Net()(torch.randn(8, 1, 32, 32))
        """,
    ),
    Explained(
        "a batch size written down",
        "M18",
        ("32 is not the size of this batch, 4", "`x.reshape(x.shape[0], -1)`"),
        """
        for x in torch.randn(100, 3, 3).split(32):
            x = x.view(32, -1)  # here
        """,
    ),
    Explained(
        "a decoder with too few numbers",
        "M18",
        ("(16, 3, 3) has 144 numbers", "144 outputs"),
        """
        x = nn.Linear(8, 100)(torch.randn(4, 8))
        x = x.view(-1, 16, 3, 3)  # here
        """,
    ),
    Explained(
        "a view of what was transposed",
        "M18",
        ("`x` of shape (8, 5, 4)", "reshape"),
        """
        x = torch.randn(8, 4, 5).transpose(1, 2)
        x = x.view(8, -1)  # here
        """,
    ),
    Explained(
        "a flatten that takes the batch too",
        "M18",
        ("8 samples of 144 features are flattened into one row", "flatten(1)"),
        """
        fc, x = nn.Linear(144, 3), torch.randn(8, 4, 6, 6)
        out = fc(x.flatten())  # here
        """,
    ),
)

UNRELATED = {
    "a missing key": "config = {'lr': 0.1}\nconfig['momentum']",
    "a value refused by the program": "def check(n):\n    raise ValueError(f'bad size {n}')\ncheck(3)",
    "torch's words in the program's own mouth": (
        "x = torch.randn(2, 3)\n"
        "if x.shape[1] != 4:\n"
        "    raise RuntimeError('mat1 and mat2 shapes cannot be multiplied, I checked')"
    ),
    "a missing file": "open('no_such_file.csv')",
    "an assertion": "x = torch.randn(2, 3)\nassert x.shape == (3, 2), x.shape",
    "shapes in numpy": "import numpy as np\nnp.zeros((2, 3)) @ np.zeros((4, 5))",
    "an index in numpy": "import numpy as np\nnp.zeros(3)[7]",
    "an element of a list": "losses = []\nlosses[-1]",
    "a broadcast in numpy": "import numpy as np\na = np.zeros(3)\na + np.zeros(4)",
    "an attribute that is not there": "model = nn.Linear(3, 2)\nmodel.head(torch.randn(2, 3))",
    "a wrong argument": "nn.Linear(3, 2, widht=5)",
    "division by zero": "loader = []\nprint(1 / len(loader))",
    "a name that is not there": "model = nn.Linear(3, 2)\nmodle(torch.randn(2, 3))",
    "no module of that name": "import no_such_module_anywhere",
    "numpy of a tensor that requires grad": "out = nn.Linear(3, 2)(torch.randn(2, 3))\nout.numpy()",
    "an image that is not there": "image = None\nprint(image.shape)",
    "the mean of a list": "losses = [0.5, 0.25]\nprint(losses.mean())",
    "a method that dicts do not have": "config = {'size': 3}\nconfig.size()",
    "an exception of the program around torch's": (
        "x = torch.randn(2, 3)\n"
        "try:\n"
        "    x @ x\n"
        "except RuntimeError as error:\n"
        "    raise SystemError(f'training failed: {error}')"
    ),
}
