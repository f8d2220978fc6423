"""What `unstuck.check` finds by trying a batch out, and look-alikes that it passes over."""

from __future__ import annotations

from typing import Any

import pytest

import unstuck

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def found(model: Any, loss_fn: Any, batch: Any, optimizer: Any = None) -> dict[str, str]:
    """The messages by code. An optimizer over everything, unless the test brings its own."""
    given = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    report = unstuck.check(model, loss_fn, given, batch)
    assert not report.verdict.failures
    return {diagnosis.lead.code: diagnosis.lead.message for diagnosis in report.diagnoses}


def by_token(logits: Any, targets: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Layered(nn.Module):
    """`forward` is given as a function, so that each test shows what matters."""

    def __init__(self, forward: Any, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.steps = forward

    def forward(self, *inputs: Any) -> Any:
        return self.steps(self, *inputs)


def of(forward: Any, **layers: Any) -> Layered:
    return Layered(forward, **layers)


X, Y = torch.randn(12, 8), torch.arange(12) % 3
TOKENS = torch.randint(0, 20, (6, 17), generator=torch.Generator().manual_seed(2))


# R04: examples that depend on one another


def test_where_the_examples_are_mixed_is_named() -> None:
    inner = of(lambda self, x: x - x.mean(0))
    model = nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 3))
    message = found(model, nn.CrossEntropyLoss(), (X, Y))["R04"]
    assert "beginning in 1 (Layered)" in message


def test_a_place_in_the_user_s_file_is_named() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.layer(x - x.mean(0))

    model = Centred()
    report = unstuck.check(model, nn.CrossEntropyLoss(), None, (X, Y))
    place = report.diagnoses[0].lead.place
    assert place is not None
    assert place.path.endswith("test_trial.py")
    assert place.line == Centred.forward.__code__.co_firstlineno


@pytest.mark.parametrize("reduced", [True, False])
def test_attention_over_the_batch_is_found_with_positions_along_the_sequence(reduced: bool) -> None:
    def forward(self: Any, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = self.block(x)
        return self.head(x.mean(1) if reduced else x)

    layers = {"tokens": nn.Embedding(20, 8), "places": nn.Embedding(17, 8), "head": nn.Linear(8, 3)}
    target = torch.arange(6) % 3 if reduced else TOKENS % 3
    loss = F.cross_entropy if reduced else by_token
    wrong = of(forward, block=nn.TransformerEncoderLayer(8, 2, 16), **layers)
    assert "R04" in found(wrong, loss, (TOKENS, target))
    right = of(forward, block=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), **layers)
    assert "R04" not in found(right, loss, (TOKENS, target))


def test_a_language_model_with_time_first_is_asked_about_the_other_axis() -> None:
    layers = {"tokens": nn.Embedding(20, 8), "lstm": nn.LSTM(8, 16), "head": nn.Linear(16, 20)}
    by_time = TOKENS.T.contiguous()
    batch = (by_time[:-1], by_time[1:].reshape(-1))
    right = of(lambda self, tokens: self.head(self.lstm(self.tokens(tokens))[0]).flatten(0, 1), **layers)
    assert not found(right, F.cross_entropy, batch)
    shaped = of(lambda self, tokens: self.head(self.lstm(self.tokens(tokens))[0]), **layers)
    assert not found(shaped, lambda out, y: F.cross_entropy(out.flatten(0, 1), y), batch)
    mixed = of(
        lambda self, tokens: self.head(self.lstm(self.tokens(tokens) - self.tokens(tokens).mean(1, True))[0]), **layers
    )
    assert "R04" in found(mixed, lambda out, y: F.cross_entropy(out.flatten(0, 1), y), batch)


BY_DESIGN = {
    "pairs": (of(lambda self, x: self.a(x) @ self.a(x).T, a=nn.Linear(8, 4)), torch.arange(12)),
    "batch norm without statistics": (
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)),
        Y,
    ),
    "functional batch norm": (
        of(lambda self, x: self.a(F.batch_norm(x, None, None, training=True)), a=nn.Linear(8, 3)),
        Y,
    ),
    "sampling": (of(lambda self, x: self.a(x + torch.randn_like(x)), a=nn.Linear(8, 3)), Y),
    "group norm": (nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), Y),
}


@pytest.mark.parametrize("name", BY_DESIGN)
def test_what_looks_at_the_batch_by_design_is_left_alone(name: str) -> None:
    model, target = BY_DESIGN[name]
    assert "R04" not in found(model, F.cross_entropy, (X, target))


def test_a_graph_is_no_batch() -> None:
    def forward(self: Any, nodes: Any, edges: Any) -> Any:
        return self.a(nodes.index_add(0, edges[1], nodes[edges[0]]))

    edges = torch.randint(0, 12, (2, 30))
    model = of(forward, a=nn.Linear(8, 3))
    report = unstuck.check(model, F.cross_entropy, None, ((X, edges), Y))
    assert report.diagnoses == ()
    assert any(sentence.startswith("R04") for sentence in report.verdict.not_checked)


def test_lengths_that_must_be_sorted_are_not_held_against_anybody() -> None:
    def forward(self: Any, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.gru(packed)[1][0])

    model = of(forward, gru=nn.GRU(4, 8, batch_first=True), head=nn.Linear(8, 3))
    batch = ((torch.randn(6, 5, 4), torch.tensor([5, 5, 4, 3, 2, 1])), torch.arange(6) % 3)
    assert not found(model, F.cross_entropy, batch)


@pytest.mark.parametrize("outside", [False, True])
def test_a_model_that_remembers_its_last_pass_does_not_mix_examples(outside: bool) -> None:
    memory: list[Any] = []

    def forward(self: Any, x: Any) -> Any:
        kept = memory if outside else self.kept
        x, earlier = self.head(x), kept[-1] if kept else 0.0
        kept.append(x.detach().sum())
        return x + earlier

    model = of(forward, head=nn.Linear(8, 3))
    model.kept = []
    assert not found(model, F.cross_entropy, (X, Y))


# R05: predictions that see the future


def language_model(mask: bool = True, **gru: Any) -> Any:
    def forward(self: Any, tokens: Any) -> Any:
        x = self.tokens(tokens)
        return self.head(self.gru(x)[0])

    width = 16 * (1 + gru.get("bidirectional", False))
    return of(
        forward, tokens=nn.Embedding(20, 8), gru=nn.GRU(8, 16, batch_first=True, **gru), head=nn.Linear(width, 20)
    )


def test_a_bidirectional_language_model_sees_the_future() -> None:
    batch = (TOKENS[:, :-1], TOKENS[:, 1:])
    assert "beginning in gru (GRU)" in found(language_model(bidirectional=True), by_token, batch)["R05"]
    assert not found(language_model(), by_token, batch)


@pytest.mark.slow
def test_the_shift_may_be_in_the_loss_or_in_the_model() -> None:
    def shifted(logits: Any, tokens: Any) -> Any:
        return by_token(logits[:, :-1], tokens[:, 1:])

    assert "R05" in found(language_model(bidirectional=True), shifted, (TOKENS, TOKENS))
    assert not found(language_model(), shifted, (TOKENS, TOKENS))

    class WithLoss(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, labels: Any, input_ids: Any) -> Any:
            return {"loss": shifted(self.inner(input_ids), labels)}

    batch = {"labels": TOKENS, "input_ids": TOKENS}
    assert "R05" in found(WithLoss(language_model(bidirectional=True)), lambda out, _: out["loss"], batch)
    assert not found(WithLoss(language_model()), lambda out, _: out["loss"], batch)


def test_unshifted_targets_are_found_only_where_the_model_is_causal() -> None:
    assert "R05" in found(language_model(), by_token, (TOKENS, TOKENS))
    assert not found(language_model(bidirectional=True), by_token, (TOKENS, TOKENS))
    by_position = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
    assert not found(by_position, by_token, (TOKENS, TOKENS))


def test_a_decoder_that_shifts_its_own_targets_is_right() -> None:
    def forward(self: Any, tokens: Any) -> Any:
        before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        return self.inner(before)

    assert not found(of(forward, inner=language_model()), by_token, (TOKENS, TOKENS))


def test_masked_language_models_may_see_everything() -> None:
    masked = torch.rand(TOKENS.shape) < 0.3
    labels = torch.where(masked, TOKENS, -100)
    inputs = torch.where(masked, 0, TOKENS)
    assert not found(language_model(bidirectional=True), by_token, (inputs, labels))


# O02, O03, O05 and O17: what a pass and a step show


def test_a_layer_cut_off_the_graph() -> None:
    model = of(lambda self, x: self.head(self.body(x).detach()), body=nn.Linear(8, 8), head=nn.Linear(8, 3))
    assert "2 of 4 trainable parameters get no gradient from the batch" in found(model, F.cross_entropy, (X, Y))["O03"]
    model.body.requires_grad_(False)
    assert not found(model, F.cross_entropy, (X, Y), torch.optim.Adam(model.head.parameters()))


def test_a_layer_that_is_never_used_is_advice() -> None:
    model = of(lambda self, x: self.head(x), spare=nn.Linear(8, 8), head=nn.Linear(8, 3))
    report = unstuck.check(model, F.cross_entropy, torch.optim.Adam(model.parameters()), (X, Y))
    assert [(d.lead.code, d.severity.value) for d in report.diagnoses] == [("O03", "advice")]
    assert report.ok


def test_parameters_that_are_used_without_calling_their_layer_are_used() -> None:
    model = of(lambda self, x: F.linear(x, self.head.weight, self.head.bias), head=nn.Linear(8, 3))
    assert not found(model, F.cross_entropy, (X, Y))


def test_layers_in_a_plain_list() -> None:
    model = of(lambda self, x: self.head(self.hidden[0](x)), head=nn.Linear(8, 3))
    model.hidden = [nn.Linear(8, 8)]
    assert "belong to layers that the model does not register" in found(model, F.cross_entropy, (X, Y))["O02"]
    everything = [*model.parameters(), *model.hidden[0].parameters()]
    assert not found(model, F.cross_entropy, (X, Y), torch.optim.Adam(everything))
    model.hidden[0].requires_grad_(False)
    assert not found(model, F.cross_entropy, (X, Y))


class Copying(torch.optim.SGD):
    """Writes its update to a copy."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.detach().clone().sub_(parameter.grad)


class DecayingAll(torch.optim.SGD):
    """Shrinks every parameter, with or without a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.99)


def test_a_step_that_changes_nothing() -> None:
    model = nn.Linear(8, 3)
    assert (
        "bit for bit (weight, bias)"
        in found(model, F.cross_entropy, (X, Y), Copying(model.parameters(), lr=0.1))["O02"]
    )
    assert not found(model, F.cross_entropy, (X, Y), torch.optim.SGD(model.parameters(), lr=0.1))
    warming_up = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(warming_up, lambda step: step / 10)
    assert not found(model, F.cross_entropy, (X, Y), warming_up)


def test_a_step_that_moves_what_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3))
    message = found(model, F.cross_entropy, (X, Y), DecayingAll(model.parameters(), lr=0.1))["O17"]
    assert "moved 2 frozen parameters without a gradient" in message
    assert "O17" not in found(model, F.cross_entropy, (X, Y), torch.optim.AdamW(model.parameters(), lr=0.1))


def test_a_step_that_wants_to_be_called_in_its_own_way_is_not_tried() -> None:
    class Demanding(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            assert closure is not None, "needs a closure"

    model = nn.Linear(8, 3)
    assert not found(model, F.cross_entropy, (X, Y), Demanding(model.parameters(), lr=0.1))
    assert not found(model, F.cross_entropy, (X, Y), torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: self.head(F.dropout(x, 0.3)),
        lambda self, x: self.head(nn.Dropout(0.3)(x)),
        lambda self, x: self.head(F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3)[0]),
    ],
)
def test_dropout_that_ignores_the_mode(forward: Any) -> None:
    messages = found(of(forward, head=nn.Linear(8, 3)), F.cross_entropy, (X, Y))
    assert "drops 30% of the values even in eval mode" in messages["O05"]


def test_dropout_that_heeds_the_mode_or_is_meant_to_stay_on() -> None:
    heeding = of(lambda self, x: self.head(F.dropout(x, 0.3, self.training)), head=nn.Linear(8, 3))
    assert not found(heeding, F.cross_entropy, (X, Y))

    said = of(lambda self, x: self.head(F.dropout(x, 0.3, training=True)), head=nn.Linear(8, 3))
    assert not found(said, F.cross_entropy, (X, Y))

    class MCDropoutNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.head(F.dropout(x, 0.3))

    assert not found(MCDropoutNet(), F.cross_entropy, (X, Y))


def test_a_functional_loss_is_watched_like_a_module() -> None:
    model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(1))
    assert "O12" in found(model, F.cross_entropy, (X, Y))


def test_the_opponent_in_a_gan_is_no_part_of_what_is_checked() -> None:
    generator, judge = nn.Linear(8, 8), nn.Linear(8, 1)
    loss = nn.BCEWithLogitsLoss()
    assert not found(generator, lambda fake, real: loss(judge(fake), real), (X, torch.ones(12, 1)))


def test_the_report_says_what_could_not_be_tried() -> None:
    report = unstuck.check(nn.Linear(8, 3))
    assert any("R04" in text and "no batch and loss were given" in text for text in report.verdict.not_checked)
    custom = unstuck.check(nn.Linear(8, 3), lambda out, y: out.pow(2).mean(), None, (X, Y))
    assert any("R01" in text and "no loss of torch was called" in text for text in custom.verdict.not_checked)


def test_what_a_model_prints_and_warns_of_is_said_once(capsys: Any) -> None:
    model = of(lambda self, x: (print("here"), self.head(x))[1], head=nn.Linear(8, 3))
    assert not found(model, F.cross_entropy, (X, Y))
    assert capsys.readouterr().out == "here\n"
